"""Public data sets: from their names to text files.

- `datasets`   where the files of each data set are and what is in them
- `fetch`      a file in a folder: complete, with its digest compared and recorded
- `http_file`  a download that resumes, tries again and knows its limits
- `archive`    some members of a .tgz that nobody has looked into
"""

"""The package's own English-German corpus: sentences of numbers, dates, people, places and things.

The package can train, translate and be tested with it where nothing can be downloaded. An English
sentence determines its German one, and all English ones are distinct. Its source: LICENSE.unicode.
"""

import lzma
from pathlib import Path

REQUEST = {
    "seed": 1, "words": {"babel": "2.18.0", "num2words": "0.5.14"},
    "generator": "a8792c521a621ab991acf6760952ed2f3acb1a82d9451949eb0130d0fac64e03",
}  # fmt: skip
"""how the text was made, as directories say that versions which generated it have prepared"""


def unpack(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Writes the text into a folder; returns the English and German file of each part."""
    files = {}
    for part in ("train", "dev", "test"):
        english, german = (folder / f"raw.{part}.{language}" for language in ("en", "de"))
        for path in (english, german):
            packed = Path(__file__).with_name(path.name.removeprefix("raw.") + ".xz")
            path.write_bytes(lzma.decompress(packed.read_bytes()))
        files[part] = english, german
    return files

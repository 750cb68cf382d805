"""What every other package may use; itself it uses none of them."""

"""The types of columns that a declared schema may name, one file a type; a new type is one new file."""

"""The forms in which people keep labelled photos: folders, tables, archives."""

"""Where photos and labels come from; nothing is read before it is needed."""

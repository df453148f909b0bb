"""Photos of something else, and traffic unlike the validation photos: what notices them."""

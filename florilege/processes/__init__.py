"""What several processes of one machine share: a port, numbers, locks, and answers to questions."""

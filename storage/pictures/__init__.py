"""Images: what is declared of them, how one becomes numbers, and the places of a private set's."""

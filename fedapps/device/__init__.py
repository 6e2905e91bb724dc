"""SuperNodes with data of their own, and the processes that they run in."""

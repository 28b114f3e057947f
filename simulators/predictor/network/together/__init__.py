"""Work and communications that wait for each other, on one network where all of them meet."""

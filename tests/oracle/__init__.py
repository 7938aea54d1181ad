"""Side by side with nbclient: every output of some six hundred cells, in the same interpreter."""

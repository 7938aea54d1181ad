"""Compare every output of about six hundred cells with nbclient in the same interpreter."""

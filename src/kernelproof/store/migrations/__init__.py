"""How databases that an earlier kernelproof made become those of this one; see `store.upgrade`."""

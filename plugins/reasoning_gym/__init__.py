"""Task families of the library reasoning-gym: dataset and scorer. Needs the extra `reasoning-gym`."""

"""Which Lance table an asset, a partition or a name stands for, and the settings that say so."""

//! Cluster maps: decoding, increments, placement.

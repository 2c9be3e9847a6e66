//! Operations to placement groups to OSDs, without I/O.

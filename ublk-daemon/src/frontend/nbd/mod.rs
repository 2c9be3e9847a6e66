//! The NBD front end.

//! A single-threaded executor on one io_uring.

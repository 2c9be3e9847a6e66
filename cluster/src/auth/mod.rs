//! How a client proves who it is: none and cephx.

//! msgr2.1 without I/O: frames, handshake, crypto, session.

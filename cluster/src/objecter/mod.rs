//! Operations to placement groups to OSDs, without I/O.

pub mod msg;

#[cfg(test)]
mod tests;

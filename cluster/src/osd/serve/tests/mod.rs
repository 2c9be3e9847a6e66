//! An OSD as its clients and its owner see it.

mod faults;
mod maps;
mod random;
mod requests;
mod rig;
mod tell;
mod watches;

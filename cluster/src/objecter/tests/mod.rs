mod capture;
mod captured;
mod machine;
mod random;
mod rig;
mod watches;

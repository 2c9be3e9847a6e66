mod capture;
mod captured;
mod machine;
mod rig;
mod watches;

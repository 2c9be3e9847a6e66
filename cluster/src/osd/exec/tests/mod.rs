mod classes;
mod hostile;
mod operations;
mod rig;
mod snapshots;
mod watches;

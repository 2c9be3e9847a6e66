mod classes;
mod hostile;
mod live;
mod operations;
mod rig;
mod snapshots;
mod speed;
mod watches;

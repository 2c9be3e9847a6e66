mod capture;
mod captured;

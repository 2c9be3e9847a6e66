//! RBD images, format 2: metadata, striping, and the data path.

pub mod cls;
pub mod engine;
mod features;
pub mod image;
mod layout;

pub use features::Features;
pub use layout::{Extents, Layout, LayoutError, ORDERS, ObjectExtent, Pieces};

//! The cluster's only monitor.

//! Tests against streams captured from real clusters.

mod captures;
mod pcap;

//! What the block layer is told of a disk.

use super::super::disk::DiskInfo;
use super::uapi::{DiscardParams, Params};

pub const SECTOR: u64 = 512;

/// Pieces smaller than it cost an OSD a read of the rest (BlueStore's `min_alloc_size`), so file
/// systems should align to it; block devices still take single sectors.
const PHYSICAL: u32 = 4096;

/// The largest size that the driver takes for a block or a preferred I/O (`ublk_validate_params`).
const LARGEST: u32 = 256 << 20;

/// The limits of `disk` where its front end takes requests of up to `max_io` bytes.
///
/// A RADOS write is durable when it is acknowledged, so there is no volatile cache to announce: the
/// block layer then turns flushes into nothing and needs no FUA.
pub fn params(disk: &DiskInfo, max_io: u32) -> Params {
    let logical = disk.block_size.max(SECTOR as u32);
    let physical = PHYSICAL.max(logical);
    let min = disk.discard.map_or(physical, |d| d.granularity);
    let sectors = |bytes: u64| bytes / SECTOR;
    // A multiple of the granularity, so that no cut of a long one leaves a piece of a granule.
    let longest = |d: &super::super::disk::Discard| {
        let granularity = u64::from(d.granularity.max(1));
        let most = d.max_len.min(u64::from(u32::MAX) * SECTOR);
        (most / granularity * granularity).max(granularity)
    };
    Params {
        read_only: disk.read_only,
        logical_shift: shift(logical),
        physical_shift: shift(physical),
        io_min_shift: shift(min.clamp(physical, LARGEST)),
        io_opt_shift: shift(disk.preferred_io.clamp(physical, LARGEST)),
        max_sectors: sectors(u64::from(max_io.min(disk.max_io))) as u32,
        sectors: sectors(disk.size),
        discard: disk.discard.filter(|_| !disk.read_only).map(|d| {
            let most = sectors(longest(&d)) as u32;
            DiscardParams {
                granularity: d.granularity.max(logical),
                max_discard_sectors: most,
                max_write_zeroes_sectors: most,
            }
        }),
    }
}

/// Of a power of two; of others, the next below.
fn shift(n: u32) -> u8 {
    n.max(1).ilog2() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::disk::Discard;

    fn disk() -> DiskInfo {
        DiskInfo {
            size: (1 << 30) + 700,
            block_size: 1,
            preferred_io: 4 << 20,
            max_io: 32 << 20,
            read_only: false,
            discard: Some(Discard {
                granularity: 64 << 10,
                max_len: 1 << 30,
            }),
            fast_zero: true,
        }
    }

    #[test]
    fn an_image_of_4m_objects() {
        let p = params(&disk(), 512 << 10);
        assert_eq!((p.logical_shift, p.physical_shift), (9, 12));
        assert_eq!((p.io_min_shift, p.io_opt_shift), (16, 22));
        assert_eq!((p.max_sectors, p.sectors), (1024, (1 << 21) + 1));
        let d = p.discard.unwrap();
        assert_eq!((d.granularity, d.max_discard_sectors), (65536, 1 << 21));
        assert!(!p.read_only);
    }

    #[test]
    fn a_read_only_disk_is_not_discarded() {
        let p = params(
            &DiskInfo {
                read_only: true,
                ..disk()
            },
            512 << 10,
        );
        assert!(p.read_only && p.discard.is_none());
    }

    #[test]
    fn limits_of_odd_disks_stay_within_the_drivers() {
        let odd = DiskInfo {
            preferred_io: 3 << 20,
            max_io: 128 << 10,
            discard: Some(Discard {
                granularity: 3 << 20,
                max_len: u64::MAX,
            }),
            ..disk()
        };
        let p = params(&odd, 512 << 10);
        assert_eq!((p.io_opt_shift, p.max_sectors), (21, 256));
        let d = p.discard.unwrap();
        assert_eq!(u64::from(d.max_discard_sectors) * SECTOR % (3 << 20), 0);
        assert!(d.max_discard_sectors > u32::MAX / 2);
        let tiny = Discard {
            granularity: 4 << 20,
            max_len: 1 << 20,
        };
        let p = params(
            &DiskInfo {
                discard: Some(tiny),
                ..disk()
            },
            512 << 10,
        );
        assert_eq!(p.discard.unwrap().max_discard_sectors, 8192);
    }
}

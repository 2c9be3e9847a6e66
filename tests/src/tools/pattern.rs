//! Data that can be made again from a seed, and sums to compare it by.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// An endless, seekable stream of bytes that a seed determines: byte `n` depends on the seed and
/// `n` alone, so any block of an image can be checked without the blocks before it.
#[derive(Debug, Clone, Copy)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    pub fn new(seed: u64) -> Pattern {
        Pattern { seed }
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub fn fill(&self, offset: u64, buffer: &mut [u8]) {
        let mut at = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let word = self.word(at / 8).to_le_bytes();
            let part = &word[(at % 8) as usize..];
            let n = part.len().min(rest.len());
            rest[..n].copy_from_slice(&part[..n]);
            rest = &mut rest[n..];
            at += n as u64;
        }
    }

    /// The bytes `offset..offset + len`.
    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(offset, &mut bytes);
        bytes
    }

    /// The first offset in `data` (which starts at `offset` of the stream) that differs.
    pub fn mismatch(&self, offset: u64, data: &[u8]) -> Option<u64> {
        let expected = self.bytes(offset, data.len());
        let at = data.iter().zip(&expected).position(|(a, b)| a != b)?;
        Some(offset + at as u64)
    }

    /// A 64-bit mix of seed and index (the finaliser of splitmix64).
    fn word(&self, index: u64) -> u64 {
        let mut z = index
            .wrapping_add(self.seed.wrapping_mul(0xd134_2543_de82_ef95))
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Writes `mib` MiB of the pattern of `seed` to `path` and returns their SHA-256 in hex.
pub fn write_pattern(path: &Path, mib: u64, seed: u64) -> Result<String> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let pattern = Pattern::new(seed);
    let mut sum = Sha256::new();
    let mut block = vec![0; 1 << 20];
    for i in 0..mib {
        pattern.fill(i << 20, &mut block);
        sum.update(&block);
        file.write_all(&block)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    file.flush()
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(hex(&sum.finalize()))
}

/// The SHA-256 of a file (or block device) in hex.
pub fn sha256_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut sum = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let n = file
            .read(&mut block)
            .with_context(|| format!("reading {}", path.display()))?;
        if n == 0 {
            return Ok(hex(&sum.finalize()));
        }
        sum.update(&block[..n]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_equals_the_same_part_of_the_whole() {
        let pattern = Pattern::new(7);
        let whole = pattern.bytes(0, 4096);
        for (start, len) in [(0, 1), (1, 7), (5, 16), (4000, 96), (8, 8), (13, 1000)] {
            assert_eq!(pattern.bytes(start as u64, len), &whole[start..start + len]);
        }
        assert_eq!(pattern.mismatch(100, &whole[100..300]), None);
        let mut bad = whole[100..300].to_vec();
        bad[50] ^= 1;
        assert_eq!(pattern.mismatch(100, &bad), Some(150));
    }

    #[test]
    fn seeds_and_places_differ() {
        assert_ne!(Pattern::new(1).bytes(0, 64), Pattern::new(2).bytes(0, 64));
        // Neighbouring seeds are no shifted copies of each other.
        assert_ne!(Pattern::new(1).bytes(8, 64), Pattern::new(2).bytes(0, 64));
        let blocks: std::collections::HashSet<_> = (0..256u64)
            .map(|i| Pattern::new(0).bytes(i * 4096, 32))
            .collect();
        assert_eq!(blocks.len(), 256);
    }

    #[test]
    fn files_and_their_sums() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let sum = write_pattern(&path, 2, 3).unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            Pattern::new(3).bytes(0, 2 << 20)
        );
        assert_eq!(sha256_file(&path).unwrap(), sum);

        // FIPS 180-2, appendix B.1.
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(
            sha256_file(&path).unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}

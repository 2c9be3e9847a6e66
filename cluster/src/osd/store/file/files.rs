//! Open data files, no more than a fixed number.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::vfs::{File, Vfs};

pub(super) const FOLDER: &str = "objects";

/// The folder of a file, one of 256.
pub(super) fn folder(id: u64) -> u8 {
    id as u8
}

pub(super) fn folder_path(folder: u8) -> String {
    format!("{FOLDER}/{folder:02x}")
}

pub(super) fn path(id: u64) -> String {
    format!("{FOLDER}/{:02x}/{id:016x}", folder(id))
}

/// Handles by file id. The one to be closed is found by the second-chance clock.
#[derive(Debug)]
pub(super) struct Files {
    places: HashMap<u64, usize>,
    open: Vec<(u64, Arc<dyn File>, bool)>,
    hand: usize,
    max: usize,
}

impl Files {
    pub(super) fn new(max: usize) -> Files {
        Files {
            places: HashMap::new(),
            open: Vec::new(),
            hand: 0,
            max: max.max(1),
        }
    }

    fn cached(&mut self, id: u64) -> Option<usize> {
        let place = *self.places.get(&id)?;
        self.open[place].2 = true;
        Some(place)
    }

    fn keep(&mut self, id: u64, file: Arc<dyn File>) -> usize {
        let place = if self.open.len() < self.max {
            self.open.push((id, file, false));
            self.open.len() - 1
        } else {
            while std::mem::take(&mut self.open[self.hand].2) {
                self.hand = (self.hand + 1) % self.max;
            }
            let place = self.hand;
            self.hand = (self.hand + 1) % self.max;
            self.places.remove(&self.open[place].0);
            self.open[place] = (id, file, false);
            place
        };
        self.places.insert(id, place);
        place
    }

    /// Closes a file that may be about to be removed: an open one keeps its room on the disk.
    pub(super) fn forget(&mut self, id: u64) {
        let Some(place) = self.places.remove(&id) else {
            return;
        };
        self.open.swap_remove(place);
        if let Some((moved, ..)) = self.open.get(place) {
            self.places.insert(*moved, place);
        }
        if self.hand >= self.open.len() {
            self.hand = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.open.clear();
        self.hand = 0;
    }

    pub(super) fn get(&mut self, vfs: &dyn Vfs, id: u64) -> io::Result<&dyn File> {
        let place = match self.cached(id) {
            Some(place) => place,
            None => {
                let file = vfs.open(&path(id))?;
                self.keep(id, file)
            }
        };
        Ok(&*self.open[place].1)
    }

    /// Makes the file where it is missing, and says whether it did.
    pub(super) fn make(&mut self, vfs: &dyn Vfs, id: u64) -> io::Result<(&dyn File, bool)> {
        let (place, made) = match self.cached(id) {
            Some(place) => (place, false),
            None => {
                let path = path(id);
                let (file, made) = match vfs.open(&path) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => (vfs.create(&path)?, true),
                    file => (file?, false),
                };
                (self.keep(id, file), made)
            }
        };
        Ok((&*self.open[place].1, made))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::Disk;
    use super::*;

    #[test]
    fn no_more_files_are_open_than_allowed_and_the_used_ones_stay() {
        let disk = Disk::new(1);
        let mut files = Files::new(3);
        for id in 1..=3 {
            assert!(files.make(&disk, id).unwrap().1);
        }
        for id in 4..100 {
            files.get(&disk, 2).unwrap();
            assert!(files.make(&disk, id).unwrap().1);
            assert!(files.places.contains_key(&2));
            assert_eq!((files.open.len(), files.places.len()), (3, 3));
        }
        assert!(!files.make(&disk, 50).unwrap().1);
        files.forget(2);
        files.forget(2);
        assert_eq!((files.open.len(), files.places.len()), (2, 2));
        for id in [2, 99, 60, 2, 61] {
            assert!(!files.make(&disk, id).unwrap().1);
            let place = files.places[&id];
            assert_eq!(files.open[place].0, id);
        }
        assert_eq!((files.open.len(), files.places.len()), (3, 3));
        assert!(files.get(&disk, 1000).is_err());
    }
}

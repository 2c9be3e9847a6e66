use crate::codec::{Put, Reader, Result};

/// A value whose encoding always has the same size.
pub trait Fixed: Copy {
    const SIZE: usize;
    fn read(r: &mut Reader<'_>) -> Result<Self>;
    fn write(self, out: &mut Vec<u8>);
}

impl Fixed for u64 {
    const SIZE: usize = 8;
    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<u64> {
        r.u64()
    }
    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        out.put_u64(self);
    }
}

impl Fixed for i32 {
    const SIZE: usize = 4;
    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<i32> {
        r.i32()
    }
    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        out.put_i32(self);
    }
}

impl Fixed for (u64, u64) {
    const SIZE: usize = 16;
    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<(u64, u64)> {
        Ok((r.u64()?, r.u64()?))
    }
    #[inline]
    fn write(self, out: &mut Vec<u8>) {
        out.put_u64(self.0);
        out.put_u64(self.1);
    }
}

/// A list of fixed-size values: a native slice on its way out, encoded bytes on its way in. Neither
/// direction allocates.
#[derive(Debug, Clone, Copy)]
pub enum WireList<'a, T> {
    Native(&'a [T]),
    /// A whole number of encoded elements.
    Wire(&'a [u8]),
}

impl<'a, T: Fixed> WireList<'a, T> {
    /// `n` elements of the input. The reader checks that they are there.
    pub(crate) fn take(r: &mut Reader<'a>, n: usize) -> Result<WireList<'a, T>> {
        let bytes = r.bytes(n.saturating_mul(T::SIZE))?;
        Ok(WireList::Wire(bytes))
    }

    /// A le32 count and that many elements.
    pub(crate) fn take_counted(r: &mut Reader<'a>) -> Result<WireList<'a, T>> {
        let mut probe = *r;
        let n = probe.count(T::SIZE)?;
        let list = WireList::take(&mut probe, n)?;
        *r = probe;
        Ok(list)
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            WireList::Native(s) => s.len(),
            WireList::Wire(b) => b.len() / T::SIZE,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn get(&self, i: usize) -> Option<T> {
        match self {
            WireList::Native(s) => s.get(i).copied(),
            WireList::Wire(b) => {
                let bytes = b.get(i.checked_mul(T::SIZE)?..)?;
                T::read(&mut Reader::new(bytes)).ok()
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let list = *self;
        (0..list.len()).map_while(move |i| list.get(i))
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            WireList::Native(s) => s.iter().for_each(|v| v.write(out)),
            WireList::Wire(b) => out.put_bytes(b),
        }
    }

    pub(crate) fn put_counted(&self, out: &mut Vec<u8>) {
        out.put_count(self.len());
        self.put(out);
    }
}

impl<T: Fixed + PartialEq> PartialEq for WireList<'_, T> {
    fn eq(&self, other: &WireList<'_, T>) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_forms_hold_the_same_values(values: Vec<u64>) {
            let native = WireList::Native(&values);
            let mut out = Vec::new();
            native.put_counted(&mut out);
            let wire = WireList::<u64>::take_counted(&mut Reader::new(&out)).unwrap();
            prop_assert_eq!(wire, native);
            prop_assert_eq!(wire.get(values.len()), None);
            prop_assert_eq!(wire.iter().collect::<Vec<_>>(), values);
        }
    }

    #[test]
    fn a_count_beyond_the_input_is_refused() {
        let bytes = [2, 0, 0, 0, 1, 0, 0, 0];
        let mut r = Reader::new(&bytes);
        assert!(WireList::<i32>::take_counted(&mut r).is_err());
        assert_eq!(r.remaining(), 8);
    }
}

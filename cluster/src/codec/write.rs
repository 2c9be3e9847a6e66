/// Encoding into a byte vector. All integers are little-endian.
pub trait Put {
    fn put_bytes(&mut self, bytes: &[u8]);

    #[inline]
    fn put_u8(&mut self, v: u8) {
        self.put_bytes(&[v]);
    }
    #[inline]
    fn put_bool(&mut self, v: bool) {
        self.put_u8(u8::from(v));
    }
    #[inline]
    fn put_u16(&mut self, v: u16) {
        self.put_bytes(&v.to_le_bytes());
    }
    #[inline]
    fn put_u32(&mut self, v: u32) {
        self.put_bytes(&v.to_le_bytes());
    }
    #[inline]
    fn put_u64(&mut self, v: u64) {
        self.put_bytes(&v.to_le_bytes());
    }
    #[inline]
    fn put_i8(&mut self, v: i8) {
        self.put_bytes(&v.to_le_bytes());
    }
    #[inline]
    fn put_i16(&mut self, v: i16) {
        self.put_bytes(&v.to_le_bytes());
    }
    #[inline]
    fn put_i32(&mut self, v: i32) {
        self.put_bytes(&v.to_le_bytes());
    }
    #[inline]
    fn put_i64(&mut self, v: i64) {
        self.put_bytes(&v.to_le_bytes());
    }

    /// A le32 count. Panics above `u32::MAX`, which no caller can reach with bounded inputs.
    fn put_count(&mut self, n: usize) {
        self.put_u32(u32::try_from(n).expect("more than u32::MAX elements"));
    }

    /// A le32 length and the bytes.
    fn put_blob(&mut self, bytes: &[u8]) {
        self.put_count(bytes.len());
        self.put_bytes(bytes);
    }

    fn put_string(&mut self, s: &str) {
        self.put_blob(s.as_bytes());
    }

    /// A le32 count and the elements.
    fn put_list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut element: impl FnMut(&mut Self, T),
    ) {
        self.put_count(items.len());
        for item in items {
            element(self, item);
        }
    }

    /// `ENCODE_START(version, compat)` .. `ENCODE_FINISH` around what `body` writes.
    fn versioned(&mut self, version: u8, compat: u8, body: impl FnOnce(&mut Self));
}

impl Put for Vec<u8> {
    #[inline]
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn versioned(&mut self, version: u8, compat: u8, body: impl FnOnce(&mut Self)) {
        self.put_u8(version);
        self.put_u8(compat);
        let at = self.len();
        self.put_u32(0);
        body(self);
        let len = u32::try_from(self.len() - at - 4).expect("structure above 4 GiB");
        self[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
}

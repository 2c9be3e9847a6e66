//! Operations on an object's attributes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::state::{HEAD, State, io};
use super::{Done, OK, errno};
use crate::codec::{Put, Reader};
use crate::objecter::msg::{CmpMode, CmpOp, XattrArgs};
use crate::osd::cls::Errno;
use crate::osd::limits;
use crate::osd::store::{Step, Store};

/// Name and value.
type Attr = (Vec<u8>, Vec<u8>);

/// An attribute's name and what follows. Ceph lets the exception of a name that is not there pass
/// through; a client that sends one learns of its error here.
fn split(name_len: u32, input: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let split = input.split_at_checked(name_len as usize);
    split.ok_or(errno(libc::EINVAL))
}

impl CmpOp {
    fn holds<T: Ord + ?Sized>(self, a: &T, b: &T) -> bool {
        match self {
            CmpOp::Eq => a == b,
            CmpOp::Ne => a != b,
            CmpOp::Gt => a > b,
            CmpOp::Gte => a >= b,
            CmpOp::Lt => a < b,
            CmpOp::Lte => a <= b,
        }
    }
}

/// The number that a text begins with, as `std::from_chars` reads it.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

impl<'a, S: Store> State<'_, '_, 'a, S> {
    /// ENOENT where there is no object, ENODATA where there is no such attribute.
    pub(super) fn attr_value(&mut self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.reads += 1;
        if !self.stored {
            return Err(errno(libc::ENOENT));
        }
        let value = self.store.attr(self.req.pg, &self.target, name);
        value.map_err(io)?.ok_or(errno(libc::ENODATA))
    }

    pub(super) fn attr_values(&mut self) -> Result<Vec<Attr>, Errno> {
        self.reads += 1;
        if !self.stored {
            return Err(errno(libc::ENOENT));
        }
        let mut attrs = self.store.attrs(self.req.pg, &self.target).map_err(io)?;
        // One without a name is never listed.
        attrs.retain(|(name, _)| !name.is_empty());
        Ok(attrs)
    }

    pub(super) fn get_attr(&mut self, x: XattrArgs, input: &[u8], out: &mut Vec<u8>) -> Done {
        let (name, _) = split(x.name_len, input)?;
        out.put_bytes(&self.attr_value(name)?);
        OK
    }

    pub(super) fn get_attrs(&mut self, out: &mut Vec<u8>) -> Done {
        let attrs = self.attr_values();
        let listed = attrs.as_deref().unwrap_or_default();
        out.put_list(listed.iter(), |out, (name, value)| {
            out.put_blob(name);
            out.put_blob(value);
        });
        attrs.map(|_| Some(0))
    }

    /// Returns 1 when the comparison holds, ECANCELED when it does not. The request's value is on
    /// the left.
    pub(super) fn compare_attr(&mut self, x: XattrArgs, input: &[u8]) -> Done {
        let (name, rest) = split(x.name_len, input)?;
        let stored = match self.attr_value(name) {
            Err(e) if e == errno(libc::ENODATA) => Vec::new(),
            other => other?,
        };
        let invalid = errno(libc::EINVAL);
        let mode = CmpMode::from_wire(x.cmp_mode).ok_or(invalid)?;
        let op = CmpOp::from_wire(x.cmp_op);
        let holds = match mode {
            CmpMode::String => {
                let (value, _) = split(x.value_len, rest)?;
                op.ok_or(invalid)?.holds(value, &stored[..])
            }
            CmpMode::U64 => {
                let value = Reader::new(rest).u64().map_err(|_| invalid)?;
                let stored = number(&stored).ok_or(invalid)?;
                op.ok_or(invalid)?.holds(&value, &stored)
            }
        };
        if holds {
            Ok(Some(1))
        } else {
            Err(errno(libc::ECANCELED))
        }
    }

    /// Sizes of the attributes, with what the operations so far have set.
    fn attr_sizes(&mut self) -> Result<&mut BTreeMap<Vec<u8>, u64>, Errno> {
        let known = match self.attr_sizes.take() {
            Some(sizes) => sizes,
            None if self.stored => {
                let attrs = self.store.attrs(self.req.pg, &self.target).map_err(io)?;
                let size = |name: &[u8], value: &[u8]| (name.len() + value.len()) as u64;
                let sizes = attrs.into_iter().map(|(n, v)| {
                    let size = size(&n, &v);
                    (n, size)
                });
                sizes.collect()
            }
            None => BTreeMap::new(),
        };
        Ok(self.attr_sizes.insert(known))
    }

    pub(super) fn set_attr_op(&mut self, x: XattrArgs, input: &'a [u8]) -> Done {
        if x.name_len as usize > limits::ATTR_NAME {
            self.changes += 1;
            return Err(errno(libc::ENAMETOOLONG));
        }
        let (name, rest) = split(x.name_len, input)?;
        let (value, _) = split(x.value_len, rest)?;
        self.set_attr(name.into(), value.into())
    }

    pub(super) fn set_attr(&mut self, name: Cow<'a, [u8]>, value: Cow<'a, [u8]>) -> Done {
        self.changes += 1;
        if name.len() > limits::ATTR_NAME {
            return Err(errno(libc::ENAMETOOLONG));
        }
        let size = (name.len() + value.len()) as u64;
        let sizes = self.attr_sizes()?;
        sizes.insert(name.to_vec(), size);
        if sizes.values().sum::<u64>() > limits::ATTRS {
            return Err(errno(libc::EFBIG));
        }
        self.make();
        self.step(Step::SetAttr {
            obj: HEAD,
            name,
            value,
        });
        OK
    }

    pub(super) fn remove_attr_op(&mut self, x: XattrArgs, input: &'a [u8]) -> Done {
        let (name, _) = split(x.name_len, input)?;
        self.remove_attr(name.into())
    }

    pub(super) fn remove_attr(&mut self, name: Cow<'a, [u8]>) -> Done {
        self.changes += 1;
        if !self.exists || self.info.whiteout {
            return Err(errno(libc::ENOENT));
        }
        self.attr_sizes()?.remove(&*name);
        self.step(Step::RemoveAttr { obj: HEAD, name });
        OK
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_read_as_far_as_they_go() {
        assert_eq!(number(b""), Some(0));
        assert_eq!(number(b"12"), Some(12));
        assert_eq!(number(b"12x"), Some(12));
        assert_eq!(number(b"x"), None);
        assert_eq!(number(b"-1"), None);
        assert_eq!(number(b"99999999999999999999"), None);
    }
}

use std::collections::BTreeMap;

use super::message::SubscribeItem;

/// What we want to be told, and what of it the monitor knows (`MonSub`, `src/mon/MonSub.cc`).
///
/// A monitor keeps a subscription for as long as the session lasts; the next one has to be told
/// again.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// Not sent yet, or changed since.
    fresh: BTreeMap<String, SubscribeItem>,
    sent: BTreeMap<String, SubscribeItem>,
}

impl Subscriptions {
    /// Wants `what` from version `start` on. Returns whether that is news to the monitor.
    pub(super) fn want(&mut self, what: &str, item: SubscribeItem) -> bool {
        let known = self.fresh.get(what).or_else(|| self.sent.get(what));
        if known == Some(&item) {
            return false;
        }
        self.fresh.insert(what.to_string(), item);
        true
    }

    /// A version has arrived: what comes next is what we lack now.
    pub(super) fn got(&mut self, what: &str, version: u64) {
        let map = match self.fresh.contains_key(what) {
            true => &mut self.fresh,
            false => &mut self.sent,
        };
        let Some(item) = map.get_mut(what) else {
            return;
        };
        if item.start > version {
            return;
        }
        if item.onetime() {
            map.remove(what);
        } else {
            item.start = version.saturating_add(1);
        }
    }

    /// What to send now; empty when the monitor knows all.
    pub(super) fn take_fresh(&mut self) -> BTreeMap<String, SubscribeItem> {
        let fresh = std::mem::take(&mut self.fresh);
        self.sent
            .extend(fresh.iter().map(|(what, item)| (what.clone(), *item)));
        fresh
    }

    /// The session is gone: all that is still wanted has to be sent again.
    pub(super) fn reload(&mut self) {
        for (what, item) in std::mem::take(&mut self.sent) {
            self.fresh.entry(what).or_insert(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(start: u64, onetime: bool) -> SubscribeItem {
        SubscribeItem {
            start,
            flags: u8::from(onetime),
        }
    }

    #[test]
    fn what_is_known_is_not_sent_twice() {
        let mut subs = Subscriptions::default();
        assert!(subs.want("osdmap", item(5, true)));
        assert!(!subs.want("osdmap", item(5, true)));
        assert_eq!(subs.take_fresh().len(), 1);
        assert!(subs.take_fresh().is_empty());
        assert!(!subs.want("osdmap", item(5, true)));
        assert!(subs.want("osdmap", item(5, false)));
        assert_eq!(subs.take_fresh()["osdmap"], item(5, false));
    }

    #[test]
    fn a_new_session_is_told_what_is_still_lacking() {
        let mut subs = Subscriptions::default();
        subs.want("monmap", item(0, false));
        subs.want("osdmap", item(5, true));
        subs.take_fresh();
        subs.got("monmap", 3);
        subs.got("osdmap", 4);
        subs.reload();
        let fresh = subs.take_fresh();
        assert_eq!(fresh["monmap"], item(4, false));
        assert_eq!(fresh["osdmap"], item(5, true));
        // A map that comes once ends its subscription.
        subs.got("osdmap", 5);
        subs.reload();
        assert!(!subs.take_fresh().contains_key("osdmap"));
    }

    #[test]
    fn a_change_outlives_the_session_it_was_not_sent_in() {
        let mut subs = Subscriptions::default();
        subs.want("osdmap", item(5, false));
        subs.take_fresh();
        subs.want("osdmap", item(9, true));
        subs.reload();
        assert_eq!(subs.take_fresh()["osdmap"], item(9, true));
    }
}

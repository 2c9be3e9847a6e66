//! The tickets of one identity and when they want renewal (`CephXTicketManager`,
//! `src/auth/cephx/CephxProtocol.cc`).

use crate::codec::{EntityType, Now, Reader};

use super::key::{CryptoKey, Usage};
use super::wire::{ServiceTicket, TicketBlob};
use super::{AuthError, envelope};

/// A ticket and the key it shares with its service.
#[derive(Clone)]
pub(super) struct Ticket {
    pub(super) session_key: CryptoKey,
    pub(super) blob: TicketBlob,
    /// Monotonic nanoseconds. `None` never expires.
    lifetime: Option<Lifetime>,
    /// Refused or withdrawn. An auth ticket still proves the global id then.
    stale: bool,
}

#[derive(Clone, Copy)]
struct Lifetime {
    renew_after: u64,
    expires: u64,
}

impl Ticket {
    fn needs_renewal(&self, now: Now) -> bool {
        self.stale || self.lifetime.is_some_and(|l| now.mono >= l.renew_after)
    }
}

/// Every ticket held, by service.
#[derive(Clone, Default)]
pub(super) struct Tickets(Vec<(EntityType, Ticket)>);

/// A set of services, one bit each.
pub(super) fn bit(service: EntityType) -> u32 {
    u32::from(service.0)
}

fn services(set: u32) -> impl Iterator<Item = EntityType> {
    (0..8)
        .map(|i| EntityType(1 << i))
        .filter(move |s| set & bit(*s) != 0)
}

impl Tickets {
    pub(super) fn get(&self, service: EntityType) -> Option<&Ticket> {
        self.0.iter().find(|(s, _)| *s == service).map(|(_, t)| t)
    }

    /// The ticket to show to `service`. An expired one is shown too: the service decides by the
    /// secrets it still has, and may know better than a clock that ran through a suspend.
    pub(super) fn usable(&self, service: EntityType) -> Option<&Ticket> {
        self.get(service).filter(|t| !t.stale)
    }

    pub(super) fn invalidate(&mut self, service: EntityType) {
        for (s, ticket) in &mut self.0 {
            if *s == service {
                ticket.stale = true;
            }
        }
    }

    pub(super) fn invalidate_all(&mut self) {
        for (_, ticket) in &mut self.0 {
            ticket.stale = true;
        }
    }

    /// Services of `want` whose ticket is missing, refused or due (`validate_tickets`).
    pub(super) fn need(&self, want: u32, now: Now) -> u32 {
        services(want)
            .filter(|s| self.get(*s).is_none_or(|t| t.needs_renewal(now)))
            .fold(0, |set, s| set | bit(s))
    }

    /// When [`Tickets::need`] next changes by itself.
    pub(super) fn next_renewal(&self, want: u32) -> Option<u64> {
        services(want)
            .filter_map(|s| self.get(s)?.lifetime)
            .map(|l| l.renew_after)
            .min()
    }

    /// Whether any ticket of `set` can no longer be relied on.
    pub(super) fn expired(&self, set: u32, now: Now) -> bool {
        services(set).any(|s| {
            self.get(s)
                .is_none_or(|t| t.stale || t.lifetime.is_some_and(|l| now.mono >= l.expires))
        })
    }

    /// Takes in a ticket reply sealed with `key` (`verify_service_ticket_reply`): version, count,
    /// then per ticket its service, a version, the sealed key and validity, and the blob, which may
    /// be sealed once more with the key of the ticket it replaces.
    pub(super) fn receive(
        &mut self,
        r: &mut Reader<'_>,
        key: &CryptoKey,
        now: Now,
    ) -> Result<(), AuthError> {
        r.skip(1)?;
        // Service, version, two lengths and the flag are the least a ticket takes.
        let count = r.count(4 + 1 + 4 + 1 + 4)?;
        for _ in 0..count {
            let service = r.u32()?;
            r.skip(1)?;
            let sealed = r.blob()?;
            let encrypted_blob = r.bool()?;
            let blob = r.blob()?;
            // Not asked for by anyone we know of, and no name in our code for it.
            let Ok(service) = u8::try_from(service).map(EntityType) else {
                continue;
            };
            let opened = envelope::open(key, Usage::TicketSessionKey, sealed, "ticket")?;
            let ticket = ServiceTicket::decode(&mut opened.reader())?;
            let blob = if encrypted_blob {
                let old = self.get(service).ok_or(AuthError::OutOfOrder {
                    what: "a ticket sealed with the key of an older one that we do not have",
                })?;
                let opened =
                    envelope::open(&old.session_key, Usage::TicketBlob, blob, "ticket blob")?;
                let mut inner = opened.reader();
                TicketBlob::decode(&mut Reader::new(inner.blob()?))?
            } else {
                TicketBlob::decode(&mut Reader::new(blob))?
            };
            self.insert(service, ticket, blob, now);
        }
        Ok(())
    }

    fn insert(&mut self, service: EntityType, ticket: ServiceTicket, blob: TicketBlob, now: Now) {
        // Renewal starts after three quarters of the validity, as in librados.
        let validity = ticket.validity.as_nanos();
        let lifetime = (validity != 0).then(|| Lifetime {
            renew_after: now.mono.saturating_add(validity - validity / 4),
            expires: now.mono.saturating_add(validity),
        });
        let ticket = Ticket {
            session_key: ticket.session_key,
            blob,
            lifetime,
            stale: false,
        };
        match self.0.iter_mut().find(|(s, _)| *s == service) {
            Some((_, slot)) => *slot = ticket,
            None => self.0.push((service, ticket)),
        }
    }
}

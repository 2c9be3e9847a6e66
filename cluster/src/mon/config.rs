use std::time::Duration;

use crate::codec::EntityAddrVec;
use crate::conf::{Conf, ConfError, options};

/// How to look for a monitor and how long to wait for it; the names are Ceph's.
#[derive(Debug, Clone, PartialEq)]
pub struct MonConfig {
    /// Where to start; the monitor map takes over.
    pub monitors: Vec<EntityAddrVec>,
    /// The cluster that we must find. `None` takes the first that answers.
    pub fsid: Option<[u8; 16]>,
    pub hostname: String,
    pub hunt_interval: Duration,
    pub hunt_interval_backoff: f64,
    pub hunt_interval_min_multiple: f64,
    pub hunt_interval_max_multiple: f64,
    /// Monitors dialed at a time; 0 is all.
    pub hunt_parallel: usize,
    pub ping_interval: Duration,
    /// Zero is never.
    pub ping_timeout: Duration,
    /// For the first session, until [`MonEvent::Ready`](super::MonEvent::Ready); zero is for ever.
    pub mount_timeout: Duration,
    /// For every request; zero is for ever.
    pub op_timeout: Duration,
}

impl MonConfig {
    /// Ceph's defaults.
    pub fn new(monitors: Vec<EntityAddrVec>, hostname: String) -> MonConfig {
        MonConfig {
            monitors,
            fsid: None,
            hostname,
            hunt_interval: Duration::from_secs(3),
            hunt_interval_backoff: 1.5,
            hunt_interval_min_multiple: 1.0,
            hunt_interval_max_multiple: 10.0,
            hunt_parallel: 3,
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(30),
            mount_timeout: Duration::from_secs(300),
            op_timeout: Duration::ZERO,
        }
    }

    /// As the configuration has it. Like Ceph's clients this takes the cluster that the addresses
    /// lead to, whatever `fsid` says; set [`MonConfig::fsid`] to insist.
    pub fn from_conf(conf: &Conf) -> Result<MonConfig, ConfError> {
        Ok(MonConfig {
            monitors: conf.mon_hosts()?,
            fsid: None,
            hostname: conf.host(),
            hunt_interval: conf.get(&options::MON_CLIENT_HUNT_INTERVAL)?,
            hunt_interval_backoff: conf.get(&options::MON_CLIENT_HUNT_INTERVAL_BACKOFF)?,
            hunt_interval_min_multiple: conf
                .get(&options::MON_CLIENT_HUNT_INTERVAL_MIN_MULTIPLE)?,
            hunt_interval_max_multiple: conf
                .get(&options::MON_CLIENT_HUNT_INTERVAL_MAX_MULTIPLE)?,
            hunt_parallel: usize::try_from(conf.get(&options::MON_CLIENT_HUNT_PARALLEL)?)
                .unwrap_or(usize::MAX),
            ping_interval: conf.get(&options::MON_CLIENT_PING_INTERVAL)?,
            ping_timeout: conf.get(&options::MON_CLIENT_PING_TIMEOUT)?,
            mount_timeout: conf.get(&options::CLIENT_MOUNT_TIMEOUT)?,
            op_timeout: conf.get(&options::RADOS_MON_OP_TIMEOUT)?,
        })
    }

    /// With nothing in it that would dial or ping without pause.
    pub(super) fn sane(mut self) -> MonConfig {
        const SHORTEST: Duration = Duration::from_millis(100);
        self.hunt_interval = self.hunt_interval.max(SHORTEST);
        self.ping_interval = self.ping_interval.max(SHORTEST);
        self.hunt_interval_backoff = self.hunt_interval_backoff.max(1.0);
        self.hunt_interval_min_multiple = self.hunt_interval_min_multiple.max(0.1);
        self.hunt_interval_max_multiple = self
            .hunt_interval_max_multiple
            .max(self.hunt_interval_min_multiple);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::Options;

    #[test]
    fn a_configuration_that_says_nothing_has_ceph_s_defaults() {
        let options = Options {
            settings: vec![
                ("mon_host".into(), "10.0.0.1".into()),
                ("host".into(), "node7".into()),
            ],
            ..Options::default()
        };
        let none = |_: &std::path::Path| Err(std::io::ErrorKind::NotFound.into());
        let conf = Conf::load_with(&options, none).unwrap();
        let config = MonConfig::from_conf(&conf).unwrap();
        let want = MonConfig::new(conf.mon_hosts().unwrap(), "node7".into());
        assert_eq!(config, want);
        assert_eq!(config.clone().sane(), want);
    }

    #[test]
    fn nothing_happens_without_pause() {
        let mut config = MonConfig::new(Vec::new(), String::new());
        config.hunt_interval = Duration::ZERO;
        config.ping_interval = Duration::ZERO;
        config.hunt_interval_min_multiple = 0.0;
        config.hunt_interval_max_multiple = 0.0;
        config.hunt_interval_backoff = 0.0;
        let config = config.sane();
        assert!(!config.hunt_interval.is_zero() && !config.ping_interval.is_zero());
        assert!(config.hunt_interval_max_multiple >= config.hunt_interval_min_multiple);
        assert!(config.hunt_interval_min_multiple > 0.0 && config.hunt_interval_backoff >= 1.0);
    }
}

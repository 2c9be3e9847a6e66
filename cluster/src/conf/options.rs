//! The options we know, with Ceph's names, types and defaults (`src/common/options/*.yaml.in`).

use std::time::Duration;

use super::value::{self, AuthMethod, ConMode, Parsed};

/// An option and how its text becomes a value.
#[derive(Debug)]
pub struct Opt<T> {
    pub name: &'static str,
    pub(super) default: &'static str,
    pub(super) parse: fn(&str) -> Parsed<T>,
}

/// What is known of an option whatever its type.
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) default: &'static str,
    /// On a command line the option may stand without a value.
    pub(super) flag: bool,
    /// The monitors may set it (it lacks `FLAG_NO_MON_UPDATE`).
    pub(super) from_monitors: bool,
    pub(super) check: fn(&str) -> Parsed<()>,
}

pub(super) fn known(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|k| k.name == name)
}

macro_rules! options {
    ($($(#[$doc:meta])* $id:ident: $ty:ty = $name:literal, $parse:path, $default:literal
        $(, local $local:literal)?;)*) => {
        $($(#[$doc])* pub const $id: Opt<$ty> = Opt {
            name: $name,
            default: $default,
            parse: $parse,
        };)*

        pub(super) const KNOWN: &[Known] = &[$(Known {
            name: $name,
            default: $default,
            flag: is_flag(stringify!($ty)),
            from_monitors: !(false $(|| $local)?),
            check: |s| $parse(s).map(drop),
        }),*];
    };
}

const fn is_flag(ty: &str) -> bool {
    matches!(ty.as_bytes(), b"bool")
}

options! {
    /// Of this host, for `$host`; empty means what the system says.
    HOST: String = "host", value::text, "", local true;
    FSID: Option<[u8; 16]> = "fsid", value::uuid, "", local true;
    MON_HOST: String = "mon_host", value::text, "", local true;

    KEY: String = "key", value::text, "", local true;
    KEYFILE: String = "keyfile", value::text, "", local true;
    /// Files, of which the first that exists is read.
    KEYRING: String = "keyring", value::text,
        "/etc/ceph/$cluster.$name.keyring,/etc/ceph/$cluster.keyring,/etc/ceph/keyring,\
         /etc/ceph/keyring.bin", local true;
    AUTH_CLIENT_REQUIRED: Vec<AuthMethod> =
        "auth_client_required", value::methods, "cephx, none";
    /// Replaces the former when it is not empty. Ceph 17 and later no longer know it.
    AUTH_SUPPORTED: Vec<AuthMethod> = "auth_supported", value::methods, "";

    /// Of connections to OSDs.
    MS_CLIENT_MODE: Vec<ConMode> = "ms_client_mode", value::modes, "crc secure";
    /// Of connections to monitors.
    MS_MON_CLIENT_MODE: Vec<ConMode> = "ms_mon_client_mode", value::modes, "secure crc";
    /// What an OSD accepts.
    MS_SERVICE_MODE: Vec<ConMode> = "ms_service_mode", value::modes, "crc secure";
    /// What a monitor accepts.
    MS_MON_SERVICE_MODE: Vec<ConMode> = "ms_mon_service_mode", value::modes, "secure crc";
    MS_CRC_DATA: bool = "ms_crc_data", value::boolean, "true";
    MS_CRC_HEADER: bool = "ms_crc_header", value::boolean, "true";

    /// How long connecting to the cluster may take; 0 is for ever.
    CLIENT_MOUNT_TIMEOUT: Duration = "client_mount_timeout", value::timespan, "5m";
    /// How long a request to a monitor may take; 0 is for ever.
    RADOS_MON_OP_TIMEOUT: Duration = "rados_mon_op_timeout", value::timespan, "0";
    /// How long a request to an OSD may take; 0 is for ever.
    RADOS_OSD_OP_TIMEOUT: Duration = "rados_osd_op_timeout", value::timespan, "0";
    MON_CLIENT_HUNT_INTERVAL: Duration = "mon_client_hunt_interval", value::seconds, "3";
    MON_CLIENT_HUNT_INTERVAL_BACKOFF: f64 =
        "mon_client_hunt_interval_backoff", value::float, "1.5";
    MON_CLIENT_HUNT_INTERVAL_MIN_MULTIPLE: f64 =
        "mon_client_hunt_interval_min_multiple", value::float, "1";
    MON_CLIENT_HUNT_INTERVAL_MAX_MULTIPLE: f64 =
        "mon_client_hunt_interval_max_multiple", value::float, "10";
    /// Monitors dialed at a time; 0 is all of them.
    MON_CLIENT_HUNT_PARALLEL: u64 = "mon_client_hunt_parallel", value::count, "3";
    MON_CLIENT_PING_INTERVAL: Duration = "mon_client_ping_interval", value::seconds, "10";
    /// 0 is never.
    MON_CLIENT_PING_TIMEOUT: Duration = "mon_client_ping_timeout", value::seconds, "30";

    OBJECTER_INFLIGHT_OPS: u64 = "objecter_inflight_ops", value::count, "1024";
    OBJECTER_INFLIGHT_OP_BYTES: u64 = "objecter_inflight_op_bytes", value::size, "100M";
    OBJECTER_TIMEOUT: Duration = "objecter_timeout", value::seconds, "10";
    OBJECTER_TICK_INTERVAL: Duration = "objecter_tick_interval", value::seconds, "5";

    RBD_DEFAULT_POOL: String = "rbd_default_pool", value::text, "rbd";
    RBD_DEFAULT_DATA_POOL: String = "rbd_default_data_pool", value::text, "";
    RBD_DEFAULT_ORDER: u64 = "rbd_default_order", value::count, "22";
    RBD_DEFAULT_FEATURES: u64 = "rbd_default_features", value::features, "61";
    /// 0 is one object.
    RBD_DEFAULT_STRIPE_UNIT: u64 = "rbd_default_stripe_unit", value::size, "0";
    /// 0 is one.
    RBD_DEFAULT_STRIPE_COUNT: u64 = "rbd_default_stripe_count", value::count, "0";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value() {
        for option in KNOWN {
            assert_eq!((option.check)(option.default), Ok(()), "{}", option.name);
        }
    }

    #[test]
    fn booleans_are_flags_and_secrets_are_local() {
        assert!(known("ms_crc_data").unwrap().flag);
        assert!(!known("mon_host").unwrap().flag);
        assert!(!known("keyring").unwrap().from_monitors);
        assert!(known("rados_osd_op_timeout").unwrap().from_monitors);
    }
}

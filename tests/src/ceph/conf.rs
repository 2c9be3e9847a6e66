//! The cluster's ceph.conf.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::sandbox::Sandbox;
use super::state::{DAEMON_PORTS, PORTS};
use super::{Auth, Cipher, Mgr, Mode, Store, Version};

/// All that was chosen for a cluster; kept beside its data, so that it can be started again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) version: Version,
    pub(crate) sandbox: Sandbox,
    pub(crate) fsid: String,
    pub(crate) port: u16,
    pub(crate) msgr1: bool,
    pub(crate) mons: usize,
    pub(crate) mgr: Mgr,
    /// The uuid of each OSD.
    pub(crate) osds: Vec<String>,
    pub(crate) store: Store,
    pub(crate) store_bytes: u64,
    pub(crate) auth: Auth,
    pub(crate) cipher: Cipher,
    pub(crate) mode: Mode,
    pub(crate) pool_size: usize,
    pub(crate) min_size: usize,
    pub(crate) pg_num: u32,
    pub(crate) ec: Option<(usize, usize)>,
    pub(crate) extra: Vec<String>,
}

/// Monitors are named as Ceph's own scripts name them: a, b, c.
pub(crate) fn mon_name(index: usize) -> char {
    (b'a' + index as u8) as char
}

pub(crate) fn socket_path(dir: &Path, daemon: &str) -> PathBuf {
    dir.join("run").join(format!("{daemon}.asok"))
}

impl Settings {
    /// The msgr2 address of a monitor; its msgr1 address is the next port.
    pub(crate) fn mon_addr(&self, index: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port + 2 * index as u16).into()
    }

    /// A monitor's addresses as `mon_host` and monmaptool take them.
    pub(crate) fn mon_addrvec(&self, index: usize) -> String {
        let v2 = self.mon_addr(index);
        let (ip, port) = (v2.ip(), v2.port());
        if self.msgr1 {
            format!("[v2:{ip}:{port}/0,v1:{ip}:{}/0]", port + 1)
        } else {
            format!("[v2:{ip}:{port}/0]")
        }
    }

    /// The text of ceph.conf for a cluster in `dir`.
    pub(crate) fn conf(&self, dir: &Path) -> String {
        let mut conf = String::new();
        self.global(&mut conf, dir);
        self.daemons(&mut conf, dir);
        self.osd_store(&mut conf);
        conf
    }

    fn global(&self, conf: &mut String, dir: &Path) {
        let dir = dir.display();
        let indices = 0..self.mons;
        let hosts: Vec<_> = indices.clone().map(|i| self.mon_addrvec(i)).collect();
        let names: Vec<_> = indices.map(|i| mon_name(i).to_string()).collect();
        let auth = match self.auth {
            Auth::Cephx => "cephx",
            Auth::None => "none",
        };
        let mut set = |key: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(conf, "{key} = {value}");
        };
        set("[global]\nfsid", &self.fsid);
        set("mon_host", &hosts.join(","));
        set("mon_initial_members", &names.join(","));
        for service in ["cluster", "service", "client"] {
            set(&format!("auth_{service}_required"), &auth);
        }
        set("run_dir", &format!("{dir}/run"));
        set("crash_dir", &format!("{dir}/crash"));
        set("log_file", &format!("{dir}/log/$name.log"));
        set("ms_bind_ipv4", &true);
        set("ms_bind_ipv6", &false);
        set("ms_bind_msgr1", &self.msgr1);
        set("ms_bind_port_min", &(self.port + DAEMON_PORTS));
        set("ms_bind_port_max", &(self.port + PORTS - 1));
        let mode = match self.mode {
            Mode::Default => None,
            Mode::Crc => Some("crc"),
            Mode::Secure => Some("secure"),
        };
        if let Some(mode) = mode {
            for side in ["cluster", "service", "client"] {
                set(&format!("ms_{side}_mode"), &mode);
                set(&format!("ms_mon_{side}_mode"), &mode);
            }
        }
        set("osd_pool_default_size", &self.pool_size);
        set("osd_pool_default_min_size", &self.min_size);
        set("osd_pool_default_pg_num", &self.pg_num);
        set("osd_pool_default_pg_autoscale_mode", &"off");
        // All OSDs are on one host, so replicas are spread over OSDs.
        set("osd_crush_chooseleaf_type", &0);
        set("mon_allow_pool_size_one", &true);
        set("mon_allow_pool_delete", &true);
        set("mon_warn_on_pool_no_redundancy", &false);
        set("mon_warn_on_insecure_global_id_reclaim", &false);
        set("mon_warn_on_insecure_global_id_reclaim_allowed", &false);
        set("mon_max_pg_per_osd", &2000);
        for line in &self.extra {
            let _ = writeln!(conf, "{line}");
        }
        let _ = writeln!(conf, "[client]\nkeyring = {dir}/keyring\nlog_file =");
    }

    fn daemons(&self, conf: &mut String, dir: &Path) {
        let dir = dir.display();
        // A laptop's disk is nearly full more often than a storage node's; what is tested here
        // is seconds, not minutes, so everything periodic is made quick.
        let _ = write!(
            conf,
            "\
[mon]
mon_data = {dir}/mon.$id
keyring = {dir}/mon.$id/keyring
admin_socket = {dir}/run/$name.asok
mon_cluster_log_file = {dir}/log/cluster.log
mon_data_avail_crit = 1
mon_data_avail_warn = 2
mon_data_size_warn = 64424509440
mon_osd_min_down_reporters = 1
mon_osd_reporter_subtree_level = osd
mon_osd_down_out_interval = 600
mon_tick_interval = 1
paxos_propose_interval = 0.05
[mgr]
mgr_data = {dir}/mgr.$id
keyring = {dir}/mgr.$id/keyring
admin_socket = {dir}/run/$name.asok
public_addr = 127.0.0.1
mgr_initial_modules =
mgr_module_path = {dir}/no-modules
mgr_stats_period = 1
mgr_tick_period = 1
[osd]
osd_data = {dir}/osd.$id
keyring = {dir}/osd.$id/keyring
admin_socket = {dir}/run/$name.asok
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
osd_heartbeat_interval = 1
osd_heartbeat_grace = 6
osd_mgr_report_interval = 1
mgr_stats_period = 1
osd_mclock_skip_benchmark = true
osd_recovery_sleep_hdd = 0
osd_recovery_sleep_ssd = 0
osd_recovery_sleep_hybrid = 0
osd_snap_trim_sleep_hdd = 0
osd_snap_trim_sleep_ssd = 0
osd_snap_trim_sleep_hybrid = 0
osd_delete_sleep_hdd = 0
osd_delete_sleep_ssd = 0
osd_delete_sleep_hybrid = 0
"
        );
    }

    fn osd_store(&self, conf: &mut String) {
        let bytes = self.store_bytes;
        let _ = match self.store {
            // A memstore saves itself on a clean unmount, which a fast shutdown skips.
            Store::Memstore => write!(
                conf,
                "\
osd_objectstore = memstore
memstore_device_bytes = {bytes}
memstore_page_set = true
memstore_page_size = 65536
osd_fast_shutdown = false
"
            ),
            Store::Bluestore => write!(
                conf,
                "\
osd_objectstore = bluestore
bluestore_block_size = {bytes}
bluestore_block_create = true
bluestore_block_db_create = false
bluestore_block_wal_create = false
bluestore_fsck_on_mount = false
osd_memory_target = 1073741824
"
            ),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            version: Version::V18,
            sandbox: Sandbox::Host,
            fsid: "f".into(),
            port: 20000,
            msgr1: true,
            mons: 3,
            mgr: Mgr::Lite,
            osds: vec!["u".into()],
            store: Store::Memstore,
            store_bytes: 4096,
            auth: Auth::Cephx,
            cipher: Cipher::Default,
            mode: Mode::Secure,
            pool_size: 1,
            min_size: 1,
            pg_num: 8,
            ec: None,
            extra: vec!["debug_ms = 1".into()],
        }
    }

    #[test]
    fn monitors_get_two_ports_each() {
        let conf = settings().conf(Path::new("/d"));
        let hosts = "mon_host = [v2:127.0.0.1:20000/0,v1:127.0.0.1:20001/0],\
                     [v2:127.0.0.1:20002/0,v1:127.0.0.1:20003/0],\
                     [v2:127.0.0.1:20004/0,v1:127.0.0.1:20005/0]\n";
        assert!(conf.contains(hosts), "{conf}");
        assert!(conf.contains("mon_initial_members = a,b,c\n"));

        let v2_only = Settings {
            msgr1: false,
            mons: 1,
            ..settings()
        }
        .conf(Path::new("/d"));
        assert!(
            v2_only.contains("mon_host = [v2:127.0.0.1:20000/0]\n"),
            "{v2_only}"
        );
        assert!(v2_only.contains("ms_bind_msgr1 = false\n"));
    }

    #[test]
    fn modes_and_extra_lines_are_global() {
        let conf = settings().conf(Path::new("/d"));
        let (global, _) = conf.split_once("[client]").unwrap();
        for line in [
            "ms_mon_client_mode = secure\n",
            "ms_service_mode = secure\n",
            "debug_ms = 1\n",
        ] {
            assert!(global.contains(line), "{line} not in {global}");
        }
        let plain = Settings {
            mode: Mode::Default,
            ..settings()
        }
        .conf(Path::new("/d"));
        assert!(!plain.contains("_mode = secure"));
    }
}

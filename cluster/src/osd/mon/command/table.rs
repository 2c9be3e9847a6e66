//! All commands there are.

use super::{Call, Mon, Outcome, auth, dump, osd, pool, settings, status};

pub(super) struct Entry {
    /// Literal words, then parameters.
    pub(super) sig: &'static str,
    pub(super) help: &'static str,
    pub(super) service: &'static str,
    /// Of `r`, `w` and `x`.
    pub(super) perm: &'static str,
    pub(super) run: fn(&mut Mon, &Call<'_>) -> Outcome,
}

impl Entry {
    /// The words before the first parameter.
    pub(super) fn prefix(&self) -> String {
        let words = self.sig.split_whitespace();
        words
            .take_while(|w| !w.contains(['=', ',']))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

macro_rules! commands {
    ($($service:literal $perm:literal $sig:literal, $help:literal, $run:expr;)*) => {
        pub(super) const TABLE: &[Entry] = &[$(Entry {
            sig: $sig,
            help: $help,
            service: $service,
            perm: $perm,
            run: $run,
        }),*];
    };
}

commands! {
    "mon" "r" "version", "the monitor's version", status::version;
    "mon" "r" "versions", "versions of all daemons", status::versions;
    "mon" "r" "status", "the cluster at a glance", status::status;
    "mon" "r" "health name=detail,type=CephChoices,strings=detail,req=false", "what is wrong", status::health;
    "mon" "r" "fsid", "the cluster's id", status::fsid;
    "mon" "r" "df name=detail,type=CephChoices,strings=detail,req=false", "how full the cluster is", status::df;
    "mon" "r" "features", "features of connected clients", status::features;
    "mon" "r" "node ls name=type,type=CephChoices,strings=all|osd|mon|mds|mgr,req=false", "daemons by host", status::node_ls;
    "mon" "r" "quorum_status", "the monitors' quorum", status::quorum_status;
    "mon" "r" "mon stat", "monitors at a glance", status::mon_stat;
    "mon" "r" "mon dump name=epoch,type=CephInt,range=0,req=false", "the monitor map", status::mon_dump;
    "mon" "r" "mon metadata name=id,type=CephString,req=false", "facts about monitors", status::mon_metadata;
    "mon" "r" "mon getmap name=epoch,type=CephInt,range=0,req=false", "the monitor map, encoded", status::mon_getmap;
    "mon" "r" "mon versions", "versions of the monitors", status::mon_versions;
    "mon" "rw" "log name=logtext,type=CephString,n=N", "write to the cluster log", status::log;
    "mgr" "r" "mgr dump name=epoch,type=CephInt,range=0,req=false", "the manager map, which has none", status::mgr_dump;
    "mgr" "r" "mgr stat", "the active manager, which is none", status::mgr_stat;
    "mgr" "r" "mgr services", "services of managers", status::mgr_services;
    "mgr" "r" "mgr module ls", "modules of managers", status::mgr_module_ls;
    "mgr" "r" "service dump", "services of clients", status::service_dump;
    "mgr" "r" "service status", "states of services", status::service_status;
    "fs" "r" "fs ls", "file systems", status::fs_ls;
    "mds" "r" "fs dump name=epoch,type=CephInt,range=0,req=false", "the map of file systems", status::fs_dump;
    "mds" "r" "mds stat", "metadata servers at a glance", status::mds_stat;
    "mgr" "r" "fs status name=fs,type=CephString,req=false", "file systems at a glance", status::fs_status;
    "pg" "r" "pg stat", "placement groups at a glance", status::pg_stat;
    "pg" "r" "pg dump name=dumpcontents,type=CephChoices,strings=all|summary|sum|delta|pools|osds|pgs|pgs_brief,n=N,req=false", "placement groups", status::pg_dump;
    "pg" "r" "pg ls name=pool,type=CephInt,req=false name=states,type=CephString,n=N,req=false", "placement groups", status::pg_ls;

    "osd" "r" "osd stat", "OSDs at a glance", osd::stat;
    "osd" "r" "osd dump name=epoch,type=CephInt,range=0,req=false", "the map of the cluster", dump::osd_dump;
    "osd" "r" "osd tree name=epoch,type=CephInt,range=0,req=false name=states,type=CephChoices,strings=up|down|in|out|destroyed,n=N,req=false", "OSDs in the CRUSH hierarchy", osd::tree;
    "osd" "r" "osd ls name=epoch,type=CephInt,range=0,req=false", "ids of OSDs", osd::ls;
    "osd" "r" "osd getmap name=epoch,type=CephInt,range=0,req=false", "the map of the cluster, encoded", osd::getmap;
    "osd" "r" "osd getcrushmap name=epoch,type=CephInt,range=0,req=false", "the CRUSH map, encoded", osd::getcrushmap;
    "osd" "r" "osd getmaxosd", "one more than the highest OSD id", osd::getmaxosd;
    "osd" "r" "osd find name=id,type=CephOsdName", "where an OSD is", osd::find;
    "osd" "r" "osd metadata name=id,type=CephOsdName,req=false", "facts about OSDs", osd::metadata;
    "osd" "r" "osd versions", "versions of the OSDs", osd::versions;
    "osd" "r" "osd map name=pool,type=CephPoolname name=object,type=CephObjectname name=nspace,type=CephString,req=false", "where an object is", osd::map;
    "osd" "r" "osd df name=output_method,type=CephChoices,strings=plain|tree,req=false name=filter_by,type=CephChoices,strings=class|name,req=false name=filter,type=CephString,req=false", "how full the OSDs are", osd::df;
    "osd" "r" "osd utilization", "placement groups by OSD", osd::utilization;
    "osd" "r" "osd perf", "latencies of OSDs", osd::perf;
    "osd" "r" "osd get-require-min-compat-client", "the oldest release of clients", osd::get_min_compat;
    "osd" "rw" "osd set-require-min-compat-client name=version,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false", "set the oldest release of clients", osd::set_min_compat;
    "osd" "rw" "osd set name=key,type=CephChoices,strings=full|pause|noup|nodown|noout|noin|nobackfill|norebalance|norecover|noscrub|nodeep-scrub|notieragent|nosnaptrim|pglog_hardlimit|noautoscale name=yes_i_really_mean_it,type=CephBool,req=false", "set a flag", osd::set_flag;
    "osd" "rw" "osd unset name=key,type=CephChoices,strings=full|pause|noup|nodown|noout|noin|nobackfill|norebalance|norecover|noscrub|nodeep-scrub|notieragent|nosnaptrim|noautoscale", "clear a flag", osd::unset;
    "osd" "rw" "osd down name=ids,type=CephString,n=N name=definitely_dead,type=CephBool,req=false", "mark OSDs down", osd::down;
    "osd" "rw" "osd out name=ids,type=CephString,n=N", "mark OSDs out", osd::mark_out;
    "osd" "rw" "osd in name=ids,type=CephString,n=N", "mark OSDs in", osd::mark_in;
    "osd" "rw" "osd reweight name=id,type=CephOsdName name=weight,type=CephFloat,range=0.0|1.0", "set an OSD's weight", osd::reweight;
    "osd" "r" "osd blocklist ls", "blocklisted clients", osd::blocklist_ls;
    "osd" "rw" "osd blocklist clear", "let all blocklisted clients go", osd::blocklist_clear;
    "osd" "rw" "osd blocklist name=range,type=CephString,goodchars=[range],req=false name=blocklistop,type=CephChoices,strings=add|rm name=addr,type=CephEntityAddr name=expire,type=CephFloat,range=0.0,req=false", "refuse a client, or no longer", osd::blocklist;
    "osd" "r" "osd blacklist ls", "the older name of osd blocklist ls", osd::blocklist_ls;
    "osd" "rw" "osd blacklist clear", "the older name of osd blocklist clear", osd::blocklist_clear;
    "osd" "rw" "osd blacklist name=blacklistop,type=CephChoices,strings=add|rm name=addr,type=CephEntityAddr name=expire,type=CephFloat,range=0.0,req=false", "the older name of osd blocklist", osd::blocklist;
    "osd" "r" "osd crush rule ls", "CRUSH rules", osd::rule_ls;
    "osd" "r" "osd crush rule dump name=name,type=CephString,req=false", "CRUSH rules in full", osd::rule_dump;
    "osd" "r" "osd crush dump", "the CRUSH map", dump::crush_dump;
    "osd" "r" "osd crush class ls", "device classes", osd::class_ls;
    "osd" "r" "osd erasure-code-profile ls", "erasure code profiles", osd::profile_ls;
    "osd" "r" "osd erasure-code-profile get name=name,type=CephString", "an erasure code profile", osd::profile_get;

    "osd" "r" "osd lspools", "pools by id", pool::lspools;
    "osd" "r" "osd pool ls name=detail,type=CephChoices,strings=detail,req=false", "pools", pool::ls;
    "osd" "rw" "osd pool create name=pool,type=CephPoolname name=pg_num,type=CephInt,range=0,req=false name=pgp_num,type=CephInt,range=0,req=false name=pool_type,type=CephChoices,strings=replicated|erasure,req=false name=erasure_code_profile,type=CephString,req=false,goodchars=[A-Za-z0-9-_.] name=rule,type=CephString,req=false name=expected_num_objects,type=CephInt,range=0,req=false name=size,type=CephInt,range=0,req=false name=pg_num_min,type=CephInt,range=0,req=false name=pg_num_max,type=CephInt,range=0,req=false name=autoscale_mode,type=CephChoices,strings=on|off|warn,req=false name=bulk,type=CephBool,req=false name=target_size_bytes,type=CephInt,range=0,req=false name=target_size_ratio,type=CephFloat,range=0,req=false", "make a pool", pool::create;
    "osd" "rw" "osd pool delete name=pool,type=CephPoolname name=pool2,type=CephPoolname,req=false name=yes_i_really_really_mean_it,type=CephBool,req=false name=yes_i_really_really_mean_it_not_faking,type=CephBool,req=false", "delete a pool", pool::delete;
    "osd" "rw" "osd pool rm name=pool,type=CephPoolname name=pool2,type=CephPoolname,req=false name=yes_i_really_really_mean_it,type=CephBool,req=false name=yes_i_really_really_mean_it_not_faking,type=CephBool,req=false", "delete a pool", pool::delete;
    "osd" "rw" "osd pool rename name=srcpool,type=CephPoolname name=destpool,type=CephPoolname name=yes_i_really_mean_it,type=CephBool,req=false", "rename a pool", pool::rename;
    "osd" "r" "osd pool get name=pool,type=CephPoolname name=var,type=CephChoices,strings=size|min_size|pg_num|pgp_num|crush_rule|hashpspool|nodelete|nopgchange|nosizechange|write_fadvise_dontneed|noscrub|nodeep-scrub|use_gmt_hitset|all|fast_read|pg_autoscale_mode|eio|bulk|erasure_code_profile|allow_ec_overwrites|compression_mode|compression_algorithm|compression_required_ratio|compression_max_blob_size|compression_min_blob_size|pg_num_min|pg_num_max|target_size_bytes|target_size_ratio|pg_autoscale_bias", "a parameter of a pool", pool::get;
    "osd" "rw" "osd pool set name=pool,type=CephPoolname name=var,type=CephChoices,strings=size|min_size|pg_num|pgp_num|pgp_num_actual|crush_rule|hashpspool|nodelete|nopgchange|nosizechange|write_fadvise_dontneed|noscrub|nodeep-scrub|pg_autoscale_mode|eio|bulk|compression_mode|compression_algorithm|compression_required_ratio|compression_max_blob_size|compression_min_blob_size|pg_num_min|pg_num_max|target_size_bytes|target_size_ratio|pg_autoscale_bias name=val,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false", "set a parameter of a pool", pool::set;
    "osd" "rw" "osd pool mksnap name=pool,type=CephPoolname name=snap,type=CephString", "make a snapshot of a pool", pool::mksnap;
    "osd" "rw" "osd pool rmsnap name=pool,type=CephPoolname name=snap,type=CephString", "delete a snapshot of a pool", pool::rmsnap;
    "osd" "rw" "osd pool set-quota name=pool,type=CephPoolname name=field,type=CephChoices,strings=max_objects|max_bytes name=val,type=CephString", "limit a pool", pool::set_quota;
    "osd" "r" "osd pool get-quota name=pool,type=CephPoolname", "a pool's limits", pool::get_quota;
    "osd" "r" "osd pool stats name=pool_name,type=CephPoolname,req=false", "what pools do", pool::stats;
    "osd" "rw" "osd pool application enable name=pool,type=CephPoolname name=app,type=CephString,goodchars=[A-Za-z0-9-_.] name=yes_i_really_mean_it,type=CephBool,req=false", "say who uses a pool", pool::app_enable;
    "osd" "rw" "osd pool application disable name=pool,type=CephPoolname name=app,type=CephString name=yes_i_really_mean_it,type=CephBool,req=false", "say who no longer uses a pool", pool::app_disable;
    "osd" "rw" "osd pool application set name=pool,type=CephPoolname name=app,type=CephString name=key,type=CephString,goodchars=[A-Za-z0-9-_.] name=value,type=CephString,goodchars=[A-Za-z0-9-_.=]", "keep a value for an application", pool::app_set;
    "osd" "rw" "osd pool application rm name=pool,type=CephPoolname name=app,type=CephString name=key,type=CephString", "forget an application's value", pool::app_rm;
    "osd" "r" "osd pool application get name=pool,type=CephPoolname,req=false name=app,type=CephString,req=false name=key,type=CephString,req=false", "applications and their values", pool::app_get;

    "config" "rw" "config set name=who,type=CephString name=name,type=CephString name=value,type=CephString name=force,type=CephBool,req=false", "set an option", settings::config_set;
    "config" "rw" "config rm name=who,type=CephString name=name,type=CephString", "forget an option", settings::config_rm;
    "config" "r" "config get name=who,type=CephString name=key,type=CephString,req=false", "options of an entity", settings::config_get;
    "mon" "r" "config dump", "all options", settings::config_dump;
    "config-key" "r" "config-key get name=key,type=CephString", "a stored value", settings::key_get;
    "config-key" "rw" "config-key set name=key,type=CephString name=val,type=CephString,req=false", "store a value", settings::key_set;
    "config-key" "rw" "config-key put name=key,type=CephString name=val,type=CephString,req=false", "store a value", settings::key_set;
    "config-key" "rw" "config-key del name=key,type=CephString", "forget a stored value", settings::key_rm;
    "config-key" "rw" "config-key rm name=key,type=CephString", "forget a stored value", settings::key_rm;
    "config-key" "r" "config-key exists name=key,type=CephString", "whether a value is stored", settings::key_exists;
    "config-key" "r" "config-key ls", "names of stored values", settings::key_ls;
    "config-key" "r" "config-key list", "names of stored values", settings::key_ls;
    "config-key" "r" "config-key dump name=key,type=CephString,req=false", "stored values", settings::key_dump;

    "auth" "rx" "auth ls", "all users", auth::ls;
    "auth" "rx" "auth list", "all users", auth::ls;
    "auth" "rx" "auth get name=entity,type=CephString", "a user's keyring", auth::get;
    "auth" "rx" "auth export name=entity,type=CephString,req=false", "keyring of a user, or of all", auth::export;
    "auth" "rx" "auth get-key name=entity,type=CephString", "a user's key", auth::get_key;
    "auth" "rx" "auth print-key name=entity,type=CephString", "a user's key", auth::get_key;
    "auth" "rx" "auth print_key name=entity,type=CephString", "a user's key", auth::get_key;
    "auth" "rwx" "auth get-or-create name=entity,type=CephString name=caps,type=CephString,n=N,req=false name=key_type,type=CephString,req=false", "a user's keyring, made if need be", auth::get_or_create;
    "auth" "rwx" "auth get-or-create-key name=entity,type=CephString name=caps,type=CephString,n=N,req=false name=key_type,type=CephString,req=false", "a user's key, made if need be", auth::get_or_create;
    "auth" "rwx" "auth add name=entity,type=CephString name=caps,type=CephString,n=N,req=false name=key_type,type=CephString,req=false", "add a user", auth::add;
    "auth" "rwx" "auth caps name=entity,type=CephString name=caps,type=CephString,n=N", "set a user's caps", auth::set_caps;
    "auth" "rwx" "auth import", "add the users of a keyring", auth::import;
    "auth" "rwx" "auth rm name=entity,type=CephString", "remove a user", auth::rm;
    "auth" "rwx" "auth del name=entity,type=CephString", "remove a user", auth::rm;
}

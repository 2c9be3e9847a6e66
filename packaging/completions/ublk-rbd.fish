# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_ublk_rbd_global_optspecs
    string join \n c/conf= k/keyring= id= n/name= m/mon-host= connect-timeout= cluster= format= v/verbose run-dir= h/help V/version
end

function __fish_ublk_rbd_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_ublk_rbd_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_ublk_rbd_using_subcommand
    set -l cmd (__fish_ublk_rbd_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -s V -l version -d 'Print version'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "map" -d 'Attach an image; prints where it is'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "unmap" -d 'Detach an image'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "attach" -d 'Serve the ublk devices again that a daemon which died has left; starts a daemon when none is running'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "list" -d 'List attached images'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "showmapped" -d 'List attached images'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "image" -d 'Work with images: create, ls, info, rm'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "bench" -d 'Measure'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "cluster" -d 'Run a cluster of one machine, for a first try and for tests: start, stop, status, fault'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "quickstart" -d 'Show the main job: a cluster, an image and a disk from nothing'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "daemon" -d 'Serve attached images until stopped. `map` starts one when none is running. A ublk device outlives its daemon: the next one takes it over'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "device-name" -d 'Print POOL/IMAGE of a ublk device, for udev'
complete -c ublk-rbd -n "__fish_ublk_rbd_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l frontend -d 'How the image is attached [default: ublk; nbd with --socket or --tcp]' -r -f -a "ublk\t'Block device /dev/ublkbN. Needs Linux 6.5 or later with ublk_drv'
nbd\t'Network block device, on a unix socket or TCP'"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l device -d 'The block device to make, /dev/ublkbN or N [default: the first that is free]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l queues -d 'Queues of the block device, all served by the disk\'s iothread' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l queue-depth -d 'Requests in flight of each queue. Each has 512 KiB of locked memory' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l socket -d 'Unix socket of the NBD export [default: RUN_DIR/POOL-IMAGE.sock]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l tcp -d 'Serve NBD on this TCP address instead of a unix socket' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l request-timeout -d 'Fail a request that the cluster has not answered after this many seconds [default: wait, as krbd does]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l cpu -d 'Run the iothread of this disk on this CPU' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l allow-remote -d 'Allow --tcp on an address that is not loopback. NBD here has neither encryption nor passwords'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -s r -l read-only -l ro -d 'Refuse writes. Snapshots are always read-only'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -l foreground -d 'Stay in the foreground and serve this image until interrupted, without a daemon'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand map" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -l force -d 'Detach at once: requests in flight fail. Needs no cluster'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand unmap" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand attach" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand list" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand showmapped" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -f -a "create" -d 'Create an image'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -f -a "ls" -d 'List the images of a pool'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -f -a "info" -d 'Show one image'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -f -a "rm" -d 'Remove an image and its data'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and not __fish_seen_subcommand_from create ls info rm help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -s s -l size -d 'Size; a bare number is megabytes' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l object-size -d 'Bytes of one object, a power of two from 4K to 32M' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l stripe-unit -d 'Bytes of one stripe unit; goes with --stripe-count' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l stripe-count -d 'Objects one stripe runs over' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l data-pool -d 'Pool for the data, when it is not the header\'s (an erasure-coded pool, say)' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l image-feature -d 'Features, comma-separated or repeated [default: layering]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from info" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -l no-progress -d 'Print no progress'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from rm" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "create" -d 'Create an image'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "ls" -d 'List the images of a pool'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "info" -d 'Show one image'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "rm" -d 'Remove an image and its data'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -f -a "image" -d 'I/O on an image, in this process, without a front end'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -f -a "messenger" -d 'Messages between two threads of this process, beside a bare socket'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and not __fish_seen_subcommand_from image messenger help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l rw -d 'What to do' -r -f -a "randread\t''
randwrite\t''
randrw\t''
read\t''
write\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l bs -d 'Bytes of one request' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l qd -d 'Requests in flight' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l runtime -d 'Seconds to run' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l rwmixread -d 'Share of reads in randrw, in percent' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l seed -d 'Seed of offsets and data' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l cpu -d 'Run the iothread on this CPU' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -l destroy-data -d 'Allow patterns that write: what is in the image is lost'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from image" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l bs -d 'Bytes of a message\'s payload' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l qd -d 'Messages in flight' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l runtime -d 'Seconds of one run' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l rounds -d 'Runs of each case, by turns; the median counts' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l server-cpu -d 'Run the answering thread on this CPU' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l client-cpu -d 'Run the asking thread on this CPU' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from messenger" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "image" -d 'I/O on an image, in this process, without a front end'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "messenger" -d 'Messages between two threads of this process, beside a bare socket'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -l dir -d 'Directory of the cluster [default: RUN_DIR/cluster]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -f -a "start" -d 'Start a cluster, and make it where there is none; prints what to tell clients'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -f -a "stop" -d 'Stop it. What is in its directory stays'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -f -a "status" -d 'Show what it serves and what that costs'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -f -a "fault" -d 'Have requests fail, for tests of clients'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and not __fish_seen_subcommand_from start stop status fault help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l osds -d 'OSDs, each with a thread of its own [default: one for each CPU, at most 4]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l listen -d 'Address of the monitor; port 0 picks a free one [default: the last one, or 127.0.0.1:6700]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l auth -d 'How clients prove who they are [default: the last one, or cephx]' -r -f -a "cephx\t''
none\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l pool -d 'Pool to make where it is missing' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l dir -d 'Directory of the cluster [default: RUN_DIR/cluster]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l memory -d 'Keep objects in memory: they are gone when the cluster stops. So it is without --dir'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l allow-remote -d 'Allow --listen on an address that is not loopback'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -l foreground -d 'Stay in the foreground until interrupted'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from start" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -l dir -d 'Directory of the cluster [default: RUN_DIR/cluster]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from stop" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -l dir -d 'Directory of the cluster [default: RUN_DIR/cluster]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -l dir -d 'Directory of the cluster [default: RUN_DIR/cluster]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -f -a "add" -d 'Add a fault; prints its number on each OSD'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -f -a "ls" -d 'List faults'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -f -a "clear" -d 'Remove faults; requests that they hold back go on'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from fault" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "start" -d 'Start a cluster, and make it where there is none; prints what to tell clients'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "stop" -d 'Stop it. What is in its directory stays'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "status" -d 'Show what it serves and what that costs'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "fault" -d 'Have requests fail, for tests of clients'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -l dir -d 'Directory of the cluster and the sockets [default: /var/tmp/ublk-rbd-quickstart-UID]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -l runtime -d 'Seconds for each measurement' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -l memory -d 'Keep objects in memory instead of files in that directory'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -l clean -d 'Detach, end the cluster and remove all of it'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand quickstart" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -l exit-when-idle -d 'Exit once the last image is detached'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand daemon" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -s c -l conf -d 'Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -s k -l keyring -d 'Keyring file with the user\'s key' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -l id -d 'User, without `client.` [default: admin]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -s n -l name -d 'User, with its type: `client.admin`' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -s m -l mon-host -d 'Monitor addresses, overriding the configuration file' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -l connect-timeout -d 'Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -l cluster -d 'Cluster name, which picks the configuration file [default: ceph]' -r
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -l format -d 'How to print results' -r -f -a "plain\t''
json\t''"
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -l run-dir -d 'Directory of the daemon\'s control socket and of the disks\' sockets [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]' -r -F
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -s v -l verbose -d 'Say more on standard error; twice for debugging'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand device-name" -s h -l help -d 'Print help'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "map" -d 'Attach an image; prints where it is'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "unmap" -d 'Detach an image'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "attach" -d 'Serve the ublk devices again that a daemon which died has left; starts a daemon when none is running'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "list" -d 'List attached images'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "image" -d 'Work with images: create, ls, info, rm'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "bench" -d 'Measure'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "cluster" -d 'Run a cluster of one machine, for a first try and for tests: start, stop, status, fault'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "quickstart" -d 'Show the main job: a cluster, an image and a disk from nothing'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "daemon" -d 'Serve attached images until stopped. `map` starts one when none is running. A ublk device outlives its daemon: the next one takes it over'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "device-name" -d 'Print POOL/IMAGE of a ublk device, for udev'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and not __fish_seen_subcommand_from map unmap attach list image bench cluster quickstart daemon device-name help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "create" -d 'Create an image'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "ls" -d 'List the images of a pool'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "info" -d 'Show one image'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "rm" -d 'Remove an image and its data'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "image" -d 'I/O on an image, in this process, without a front end'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "messenger" -d 'Messages between two threads of this process, beside a bare socket'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "start" -d 'Start a cluster, and make it where there is none; prints what to tell clients'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "stop" -d 'Stop it. What is in its directory stays'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "status" -d 'Show what it serves and what that costs'
complete -c ublk-rbd -n "__fish_ublk_rbd_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "fault" -d 'Have requests fail, for tests of clients'

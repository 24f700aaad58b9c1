package disks

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// A Disk is a file with an ext4 in it, which is mounted while its node runs.
type Disk struct {
	home  string // folder of its own
	image string
	mount string // where it is mounted
}

// prefix begins the names of the folders of disks, before the process that made
// them. They are in memory where there is room: what survives a cut is told by
// the file system in the image, not by what the image is on.
const prefix = "govnode-disk-"

// Usable says why there can be no disks here, or returns nil.
func Usable() error {
	if os.Geteuid() != 0 {
		return errors.New("disks need root")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount", "strace"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("disks need %s: %w", tool, err)
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fmt.Errorf("disks need loop devices: %w", err)
	}
	return nil
}

// New makes an empty disk of so many MB and mounts it.
func New(name string, megabytes int64) (d *Disk, err error) {
	parent := os.TempDir()
	var room syscall.Statfs_t
	if syscall.Statfs("/dev/shm", &room) == nil && int64(room.Bavail)*int64(room.Bsize) > 1<<30 {
		parent = "/dev/shm"
	}
	home, err := os.MkdirTemp(parent, fmt.Sprintf("%s%d-%s-", prefix, os.Getpid(), name))
	if err != nil {
		return nil, err
	}
	d = &Disk{home: home, image: filepath.Join(home, "image"), mount: filepath.Join(home, "mnt")}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Remove())
		}
	}()
	// Processes with mounts of their own, as those in network namespaces, follow
	// what is mounted and unmounted below a mount that is shared.
	if err := run("mount", "--bind", home, home); err != nil {
		return nil, err
	}
	if err := run("mount", "--make-shared", home); err != nil {
		return nil, err
	}
	if err := os.Mkdir(d.mount, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(d.image, megabytes<<20); err != nil {
		return nil, err
	}
	// Without blocks that are kept for root: a full disk is full for all.
	if err := run("mkfs.ext4", "-q", "-m", "0", d.image); err != nil {
		return nil, err
	}
	return d, d.Mount()
}

// Folder is where the disk is mounted.
func (d *Disk) Folder() string { return d.mount }

// Mount makes what is on the disk visible again.
func (d *Disk) Mount() error { return run("mount", "-o", "loop", d.image, d.mount) }

// Unmount ends the use of the disk. Whoever still has files open on it keeps it
// busy; a process that was killed a moment ago may.
func (d *Disk) Unmount() error { return unmount(d.mount) }

func unmount(path string) error {
	end := time.Now().Add(10 * time.Second)
	for {
		err := syscall.Unmount(path, 0)
		if err == nil || err == syscall.EINVAL || err == syscall.ENOENT { // not mounted
			return nil
		}
		if err != syscall.EBUSY || time.Now().After(end) {
			return fmt.Errorf("disks: umount %s: %w", path, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Cut cuts the power: what was written and not flushed is lost, and from now on
// every access fails, until the disk is unmounted and mounted again.
func (d *Disk) Cut() error {
	f, err := os.Open(d.mount)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	const (
		shutdown   = 0x8004587d // EXT4_IOC_SHUTDOWN
		noLogFlush = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH
	)
	how := uint32(noLogFlush)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		return fmt.Errorf("disks: cutting the power of %s: %w", d.mount, errno)
	}
	return nil
}

// Remount is what a machine does with its disk when its power comes back. The
// processes that used it must have ended.
func (d *Disk) Remount() error {
	if err := d.Unmount(); err != nil {
		return err
	}
	return d.Mount()
}

// Fill leaves no room on the disk, until release is called.
func (d *Disk) Fill() (release func() error, err error) {
	ballast := filepath.Join(d.mount, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		return nil, err
	}
	block := make([]byte, 64<<10)
	for len(block) >= 512 {
		if _, err = f.Write(block); err != nil { // then with smaller ones
			block = block[:len(block)/2]
		}
	}
	// Room is found when what was written is given its place.
	if sync := f.Sync(); !errors.Is(err, syscall.ENOSPC) || sync != nil {
		return nil, errors.Join(fmt.Errorf("disks: filling %s: %w", d.mount, err), sync, f.Close(), os.Remove(ballast))
	}
	return func() error { return os.Remove(ballast) }, f.Close()
}

// Wipe is a new, empty disk in the place of this one.
func (d *Disk) Wipe() error {
	if err := d.Unmount(); err != nil {
		return err
	}
	if err := run("mkfs.ext4", "-q", "-m", "0", "-F", d.image); err != nil {
		return err
	}
	return d.Mount()
}

// Remove ends the disk.
func (d *Disk) Remove() error {
	for _, path := range []string{d.mount, d.home} {
		if err := unmount(path); err != nil {
			return err
		}
	}
	return os.RemoveAll(d.home)
}

// Sweep removes the disks of processes that do not live any more.
func Sweep() error {
	var errs []error
	for _, parent := range []string{os.TempDir(), "/dev/shm"} {
		homes, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
		errs = append(errs, err)
		for _, home := range homes {
			owner := 0
			if _, err := fmt.Sscanf(strings.TrimPrefix(filepath.Base(home), prefix), "%d-", &owner); err != nil || syscall.Kill(owner, 0) == nil {
				continue
			}
			errs = append(errs, (&Disk{home: home, mount: filepath.Join(home, "mnt")}).Remove())
		}
	}
	return errors.Join(errs...)
}

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("disks: %s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

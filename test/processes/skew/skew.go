//go:build linux && amd64

package skew

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// A Clock is one of those of a process.
type Clock int

const (
	Wall      Clock = 0 // the time of day
	Monotonic Clock = 1
)

// Clocks are those of one process, until it ends.
type Clocks struct {
	memory *os.File
	at     int64 // where our part begins
	tables int64 // how often a table was written: in turn into one of two
	lines  [2]line
}

// A line says what a clock shows: to, where it really is at from, and from there
// on rate times as fast, in units of 1/65536.
type line struct{ from, rate, to, _ int64 }

const sameRate = 1 << 16

// What is written behind the end of the object, where its last page is empty:
// a cell that points to one of two tables of a line for each clock, the tables,
// and the code.
const (
	cellAt, tableAt, tableSize, codeAt = 0, 16, 64, 144
)

// code is clock_gettime(clock, *timespec). It asks the kernel itself.
//
//	mov    $228, %eax
//	syscall
//	test   %eax, %eax
//	jne    done
//	cmp    $1, %edi              other clocks stay as they are
//	ja     done
//	mov    cell(%rip), %r8
//	mov    %edi, %edi
//	shl    $5, %rdi
//	add    %rdi, %r8             the line of the clock
//	imul   $1000000000, (%rsi), %rax
//	add    8(%rsi), %rax
//	sub    (%r8), %rax           - from
//	imulq  8(%r8)                * rate, of 128 bits
//	shrd   $16, %rdx, %rax
//	add    16(%r8), %rax         + to
//	cqto
//	mov    $1000000000, %ecx
//	idiv   %rcx
//	mov    %rax, (%rsi)
//	mov    %rdx, 8(%rsi)
//	xor    %eax, %eax
//	done: ret
var code = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x85, 0xc0, 0x75, 0x43, 0x83, 0xff, 0x01, 0x77, 0x3e,
	0x4c, 0x8b, 0x05, 0x59, 0xff, 0xff, 0xff, 0x89, 0xff, 0x48, 0xc1, 0xe7, 0x05, 0x49, 0x01, 0xf8,
	0x48, 0x69, 0x06, 0x00, 0xca, 0x9a, 0x3b, 0x48, 0x03, 0x46, 0x08, 0x49, 0x2b, 0x00, 0x49, 0xf7,
	0x68, 0x08, 0x48, 0x0f, 0xac, 0xd0, 0x10, 0x49, 0x03, 0x40, 0x10, 0x48, 0x99, 0xb9, 0x00, 0xca,
	0x9a, 0x3b, 0x48, 0xf7, 0xf9, 0x48, 0x89, 0x06, 0x48, 0x89, 0x56, 0x08, 0x31, 0xc0, 0xc3,
}

// jump is how many bytes of the function are replaced.
const jump = 5

// Of takes the clocks of a process, which show what they did. It may be done
// once for each process.
func Of(pid int) (c *Clocks, err error) {
	start, end, err := object(pid)
	if err != nil {
		return nil, err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, memory.Close())
		}
	}()
	image := make([]byte, end-start)
	if _, err := memory.ReadAt(image, start); err != nil {
		return nil, err
	}
	entry, err := function(image)
	if err != nil {
		return nil, err
	}
	if image[entry] == 0xe9 {
		return nil, fmt.Errorf("skew: the clocks of %d are taken", pid)
	}
	used := (int64(len(bytes.TrimRight(image, "\x00"))) + 64 + 15) / 16 * 16
	if used+codeAt+int64(len(code)) > int64(len(image)) {
		return nil, errors.New("skew: the vDSO of this kernel has no room")
	}
	c = &Clocks{memory: memory, at: start + used}
	for i := range c.lines {
		now := real(Clock(i))
		c.lines[i] = line{from: now, rate: sameRate, to: now}
	}
	if _, err := memory.WriteAt(code, c.at+codeAt); err != nil {
		return nil, err
	}
	if err := c.write(); err != nil {
		return nil, err
	}
	there := make([]byte, jump)
	there[0] = 0xe9
	binary.LittleEndian.PutUint32(there[1:], uint32(c.at+codeAt-(start+entry+jump)))
	return c, stopped(pid, start+entry, func() error {
		_, err := memory.WriteAt(there, start+entry)
		return err
	})
}

// Jump moves a clock, forwards or backwards, from now on.
func (c *Clocks) Jump(clock Clock, by time.Duration) error {
	c.lines[clock].to += int64(by)
	return c.write()
}

// Rate lets a clock go so much faster or slower, from where it is.
func (c *Clocks) Rate(clock Clock, rate float64) error {
	l, now := &c.lines[clock], real(clock)
	l.to += int64(float64(now-l.from) * float64(l.rate) / sameRate)
	l.from, l.rate = now, int64(rate*sameRate)
	return c.write()
}

// Close leaves the clocks as they are.
func (c *Clocks) Close() error { return c.memory.Close() }

// write writes the lines into the table that is not in use, and lets the cell
// point to it.
func (c *Clocks) write() error {
	table := c.at + tableAt + c.tables%2*tableSize
	c.tables++
	var b bytes.Buffer
	for _, l := range c.lines {
		for _, v := range []int64{l.from, l.rate, l.to, 0} {
			b.Write(binary.LittleEndian.AppendUint64(nil, uint64(v)))
		}
	}
	if _, err := c.memory.WriteAt(b.Bytes(), table); err != nil {
		return err
	}
	_, err := c.memory.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(table)), c.at+cellAt)
	return err
}

// real returns what a clock of the machine shows.
func real(clock Clock) int64 {
	var now syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

// object says where a process has the kernel's object.
func object(pid int) (start, end int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &start, &end)
			return start, end, err
		}
	}
	return 0, 0, fmt.Errorf("skew: process %d has no vDSO", pid)
}

// function says where in the object the clocks are asked.
func function(image []byte) (int64, error) {
	object, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, err
	}
	symbols, err := object.DynamicSymbols()
	if err != nil {
		return 0, err
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			return int64(s.Value), nil
		}
	}
	return 0, errors.New("skew: the vDSO has no clock_gettime")
}

// stopped does something while a process stands still, and no thread of it is
// within the bytes behind entry that are replaced.
func stopped(pid int, entry int64, do func() error) (err error) {
	for range 100 {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		clear, err := away(pid, entry)
		if err == nil && clear {
			err = do()
		}
		if err := errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)); err != nil || clear {
			return err
		}
	}
	return fmt.Errorf("skew: process %d does not leave its clocks alone", pid)
}

// away waits until all threads stand still and reports whether none of them is
// within those bytes.
func away(pid int, entry int64) (bool, error) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		if err != nil {
			return false, err
		}
		still := len(threads) > 0
		for _, path := range threads {
			b, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				still = false // it has ended meanwhile
				break
			}
			if err != nil {
				return false, err
			}
			fields := strings.Fields(string(b))
			if still = len(fields) > 1; !still { // "running"
				break
			}
			counter, err := strconv.ParseUint(fields[len(fields)-1], 0, 64)
			if err != nil {
				return false, err
			}
			if at := int64(counter); entry < at && at < entry+jump {
				return false, nil
			}
		}
		if still {
			return true, nil
		}
	}
	return false, fmt.Errorf("skew: process %d does not stop", pid)
}

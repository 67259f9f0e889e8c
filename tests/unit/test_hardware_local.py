"""Detection: parsers on samples of each tool's output, machines written as files, and this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from rooflens.errors import NotFoundError, UnsupportedError
from rooflens.hardware import detect_local, device_by_hand, local_device
from rooflens.hardware.local_cpu import CpuInfo, read_cpu
from rooflens.hardware.local_gpu import (
    NVIDIA_FIELDS,
    Found,
    amd,
    find_accelerators,
    intel,
    nvidia,
    parse_amd_smi,
    parse_nvidia_smi,
    parse_rocm_smi,
    parse_system_profiler,
    parse_xpu_smi,
    pci,
)
from rooflens.hardware.shell import Output, run
from rooflens.units import GIB, MIB

SAMPLES = Path(__file__).parent.parent / "data" / "hardware"
NO_CPU = CpuInfo(None, None, None, None, None, None, (), (), None, None)


def sample(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def tools(answers: Mapping[str, Output | str]) -> Callable[[Sequence[str]], Output]:
    """A runner that answers commands by the longest matching start; anything else is not installed."""

    def runner(command: Sequence[str]) -> Output:
        line = " ".join(command)
        for start in sorted(answers, key=len, reverse=True):
            if line.startswith(start):
                answer = answers[start]
                return answer if isinstance(answer, Output) else Output(text=answer, ok=True)
        return Output(installed=False, why=f"{command[0]} is not installed")

    return runner


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")


def topology(cpu: int, *, core: int, package: int = 0, l2: int = 1024, l3: int = 32768) -> dict[str, str]:
    """The files of one CPU in /sys: private L1 and L2 per core, one L3 for all."""
    base = f"sys/devices/system/cpu/cpu{cpu}"
    files = {
        f"{base}/topology/physical_package_id": str(package),
        f"{base}/topology/die_id": "0",
        f"{base}/topology/core_id": str(core),
    }
    caches = [("1", "Data", 32, core), ("1", "Instruction", 32, core), ("2", "Unified", l2, core)]
    for index, (level, kind, kib, sharers) in enumerate([*caches, ("3", "Unified", l3, "all")]):
        where = f"{base}/cache/index{index}"
        files |= {
            f"{where}/level": level,
            f"{where}/type": kind,
            f"{where}/size": f"{kib}K",
            f"{where}/shared_cpu_list": f"core {sharers}",
        }
    return files


# --- NVIDIA


def test_nvidia_smi_names_map_to_the_catalogue() -> None:
    found = parse_nvidia_smi(sample("nvidia_smi_8xh100.csv"), NVIDIA_FIELDS)
    assert [device.index for device in found] == list(range(8))
    first = found[0]
    assert (first.name, first.memory_bytes) == ("NVIDIA H100 80GB HBM3", 81559 * MIB)
    assert (first.driver, first.compute_capability, first.power_limit_w) == ("550.54.15", "9.0", 700.0)
    local = detect_local(cpu=NO_CPU, accelerators=found)
    assert {device.catalogue.id for device in local[:8] if device.catalogue} == {"h100-sxm"}
    device = local_device(found=local)
    assert device.id == "h100-sxm"
    assert device.memory_bytes == 80e9
    assert (device.reported_memory_bytes, device.reported_memory_source) == (81559 * MIB, "nvidia-smi")


def test_another_card_of_the_same_name_and_an_unknown_card() -> None:
    found = parse_nvidia_smi(sample("nvidia_smi_mixed.csv"), NVIDIA_FIELDS)
    rtx, ti, old, _ = detect_local(cpu=NO_CPU, accelerators=found)
    assert rtx.catalogue is not None
    assert rtx.catalogue.id == "rtx-4090"
    # The 8 GB and 16 GB RTX 4060 Ti share a name; the catalogue holds the 16 GB one.
    assert ti.catalogue is None
    assert "another card of the same name" in str(ti.missing)
    assert old.catalogue is None
    assert "GTX 1080 Ti' is not in the catalogue" in str(old.missing)
    assert local_device(found=[ti, rtx, old]).id == "rtx-4090"
    with pytest.raises(UnsupportedError, match="rooflens probe"):
        local_device(found=[old])


def test_a_chip_that_shares_memory_has_the_machines() -> None:
    found = parse_nvidia_smi(sample("nvidia_smi_gb10.csv"), NVIDIA_FIELDS)
    assert found[0].memory_bytes is None
    cpu = CpuInfo("Cortex-X925", 20, 20, 20, None, 1, (), (), 128 * GIB, None)
    gb10 = detect_local(cpu=cpu, accelerators=found)[0]
    assert (gb10.kind, gb10.memory_bytes) == ("soc", 128 * GIB)
    device = local_device(found=[gb10])
    assert (device.memory_bytes, device.memory_evidence) == (128 * GIB, "measured")


def test_a_mig_slice_is_not_the_whole_card() -> None:
    found = parse_nvidia_smi(sample("nvidia_smi_mig.csv"), NVIDIA_FIELDS)
    local = detect_local(cpu=NO_CPU, accelerators=found)
    assert "MIG" in str(local[0].missing)
    with pytest.raises(UnsupportedError, match="MIG"):
        local_device(found=local)


def test_old_driver_that_lacks_a_field() -> None:
    failed = Output(why='nvidia-smi failed: Field "compute_cap" is not a valid field to query.')
    old = "--query-gpu=index,name,memory.total,driver_version --format"
    runner = tools({"nvidia-smi": failed, f"nvidia-smi {old}": "0, Tesla T4, 15360, 440.33.01\n"})
    (device,) = nvidia(runner)
    assert (device.name, device.memory_bytes, device.power_limit_w) == ("Tesla T4", 15360 * MIB, None)


def test_a_broken_driver_is_reported_and_does_not_stand_for_a_device() -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    runner = tools({"nvidia-smi": Output(why=f"nvidia-smi failed: {said}")})
    local = detect_local(cpu=NO_CPU, accelerators=nvidia(runner))
    assert said in str(local[0].missing)
    with pytest.raises(UnsupportedError, match="cpu"):
        local_device(found=local)


def test_nvml_where_there_is_no_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvidia(tools({})) == []
    library = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: b"NVIDIA L4",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=23034 * MIB),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert nvidia(tools({})) == [Found("NVIDIA", "NVIDIA L4", 0, "nvml", memory_bytes=23034 * MIB)]


# --- AMD, Intel, Apple, PCI


def test_amd_smi() -> None:
    (device,) = parse_amd_smi(sample("amd_smi_mi300x.json"))
    assert (device.name, device.memory_bytes) == ("AMD Instinct MI300X OAM", 196592 * MIB)
    assert (device.cores, device.compute_capability) == (304, "gfx942")
    local = detect_local(cpu=NO_CPU, accelerators=[device])[0]
    assert local.catalogue is not None
    assert local.catalogue.id == "mi300x"
    assert amd(tools({"amd-smi": sample("amd_smi_mi300x.json")})) == [device]


def test_rocm_smi_new_and_old_spelling() -> None:
    half, other = parse_rocm_smi(sample("rocm_smi_mi250x.json"))
    assert (half.index, other.index) == (0, 1)
    # The name is the package's, the 64 GiB are one die's: it is one of the two devices.
    local = detect_local(cpu=NO_CPU, accelerators=[half, other])
    assert [device.catalogue.id for device in local[:2] if device.catalogue] == ["mi250x-gcd"] * 2
    (radeon,) = amd(tools({"rocm-smi": sample("rocm_smi_7900xtx.json")}))
    assert (radeon.name, radeon.memory_bytes) == ("Radeon RX 7900 XTX", 25753026560)
    assert local_device(found=detect_local(cpu=NO_CPU, accelerators=[radeon])).id == "rx-7900-xtx"


def test_xpu_smi() -> None:
    assert parse_xpu_smi(sample("xpu_smi_discovery.json")) == [(0, "Intel(R) Data Center GPU Max 1550")]
    runner = tools(
        {
            "xpu-smi discovery -j": sample("xpu_smi_discovery.json"),
            "xpu-smi discovery -d 0": sample("xpu_smi_device0.json"),
        }
    )
    (device,) = intel(runner)
    assert device.memory_bytes == 137438953472
    assert local_device(found=detect_local(cpu=NO_CPU, accelerators=[device])).id == "max-1550"


def test_an_apple_machine() -> None:
    runner = tools(
        {
            "sysctl": Output(text=sample("sysctl_m3max.txt")),
            "system_profiler": sample("system_profiler_m3max.json"),
        }
    )
    cpu = read_cpu(runner=runner, platform="darwin")
    assert (cpu.name, cpu.usable_cores, cpu.memory_total_bytes) == ("Apple M3 Max", 16, 64 * GIB)
    assert cpu.flags == ("bf16", "i8mm")
    assert dict(cpu.caches) == {"L1d": 64 * 1024, "L2": 16 * MIB}
    gpu, processor = detect_local(cpu=cpu, accelerators=find_accelerators(runner=runner, platform="darwin"))
    assert gpu.catalogue is not None
    assert (gpu.catalogue.id, gpu.memory_bytes) == ("m3-max", 64 * GIB)
    assert "not in the catalogue" in str(processor.missing)
    # Apple prints no FLOP/s for the M3 Max, so a plan needs a probe.
    with pytest.raises(UnsupportedError, match="no peak"):
        local_device(found=[gpu, processor])


def test_a_smaller_bin_of_an_apple_chip_is_not_the_catalogues() -> None:
    text = sample("system_profiler_m3max.json").replace('"40"', '"30"')
    local = detect_local(cpu=NO_CPU, accelerators=parse_system_profiler(text))[0]
    assert local.catalogue is None
    assert "40 GPU cores, not 30" in str(local.missing)


def test_an_intel_mac_has_no_apple_gpu() -> None:
    assert parse_system_profiler('{"SPDisplaysDataType": [{"_name": "kHW_AMDRadeonProItem"}]}') == []


def test_pci_bus_without_any_tool(tmp_path: Path) -> None:
    def card(slot: int, kind: str, vendor: str, device: str, **more: str) -> dict[str, str]:
        base = f"sys/bus/pci/devices/0000:0{slot}:00.0"
        return {
            f"{base}/{k}": v for k, v in {"class": kind, "vendor": vendor, "device": device, **more}.items()
        }

    write(
        tmp_path,
        card(1, "0x030000", "0x10de", "0x2684")
        | card(2, "0x020000", "0x8086", "0x1533")  # a network card
        | card(3, "0x030000", "0x1234", "0x1111")  # a virtual screen
        | card(
            4,
            "0x120000",
            "0x1002",
            "0x74a1",
            product_name="AMD Instinct MI300X OAM",
            mem_info_vram_total="206141652992",
        ),
    )
    unknown, mi300x = pci(tmp_path)
    assert unknown.name == "NVIDIA PCI device 0x2684"
    assert "nvidia-smi" in str(unknown.problem)
    assert (mi300x.name, mi300x.memory_bytes, mi300x.problem) == (
        "AMD Instinct MI300X OAM",
        206141652992,
        None,
    )
    found = find_accelerators(runner=tools({}), root=tmp_path, platform="linux")
    assert local_device(found=detect_local(cpu=NO_CPU, accelerators=found)).id == "mi300x"
    # A card that no driver answers for is listed and does not stand in the CPU's way.
    with pytest.raises(UnsupportedError, match="cpu"):
        local_device(found=detect_local(cpu=NO_CPU, accelerators=[unknown]))


@pytest.mark.parametrize(
    "text", ["", "No devices found", "{", "[]", "{}", "null", "[1, 2]", '{"gpu_data": 3}']
)
def test_broken_output_is_no_device(text: str) -> None:
    assert parse_amd_smi(text) == []
    assert parse_rocm_smi(text) == []
    assert parse_xpu_smi(text) == []
    assert parse_system_profiler(text) == []


# --- CPU


def test_a_container_with_a_quota_on_a_shared_server(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/cpuinfo": sample("cpuinfo_epyc.txt"),
            "proc/meminfo": "MemTotal:       792532356 kB",
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/memory.max": str(8 * GIB),
        },
    )
    for cpu in range(4):  # two cores with two threads each
        write(tmp_path, topology(cpu, core=cpu // 2))
    info = read_cpu(root=tmp_path, platform="linux")
    assert (info.family, info.model) == (25, 17)
    assert info.name == "AMD EPYC 9654 96-Core Processor"
    assert (info.machine_cores, info.usable_threads, info.sockets) == (2, 4, 1)
    assert (info.quota_cpus, info.usable_cores) == (1.5, 1)
    assert (info.memory_total_bytes, info.usable_memory_bytes) == (792532356 * 1024, 8 * GIB)
    assert {"avx2", "avx512_bf16", "avx512_vnni"} <= set(info.flags)
    assert "amx_bf16" not in info.flags
    # Private caches add up over cores, the shared one counts once.
    assert dict(info.caches) == {"L1d": 2 * 32 * 1024, "L2": 2 * MIB, "L3": 32 * MIB}
    (local,) = detect_local(cpu=info, accelerators=[])
    assert local.catalogue is None
    assert "96 cores, this process may use 1" in str(local.missing)
    with pytest.raises(UnsupportedError, match="peak and bandwidth"):
        local_device(found=[local])


def test_version_1_cgroups_and_nested_limits(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/cpuinfo": sample("cpuinfo_xeon.txt"),
            "proc/self/cgroup": "9:memory:/a/b\n5:cpu,cpuacct:/a/b\n1:name=systemd:/a\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": str(6 * GIB),
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
        },
    )
    info = read_cpu(root=tmp_path, platform="linux")
    assert {"amx_bf16", "amx_int8", "avx512_fp16", "avx_vnni"} <= set(info.flags)
    assert info.memory_limit_bytes == 4 * GIB  # the tightest of the enclosing groups
    assert info.quota_cpus is None


def test_a_whole_socket_is_the_catalogues_cpu() -> None:
    name = "AMD EPYC 9654 96-Core Processor"
    cpu = CpuInfo(name, 96, 96, 192, None, 1, (), (), 768 * GIB, None)
    (local,) = detect_local(cpu=cpu, accelerators=[])
    device = local_device(found=[local])
    assert (device.id, device.memory_bytes, device.memory_evidence) == ("epyc-9654", 768 * GIB, "measured")
    (two,) = detect_local(cpu=CpuInfo(name, 192, 192, 384, None, 2, (), (), GIB, None), accelerators=[])
    assert "this machine has 2" in str(two.missing)


def test_an_arm_server_is_named_by_its_board(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": sample("cpuinfo_graviton.txt")})
    assert read_cpu(root=tmp_path, platform="linux").name == "Neoverse-V2"
    write(
        tmp_path, {"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "c8g.large"}
    )
    info = read_cpu(root=tmp_path, platform="linux")
    assert info.name == "Neoverse-V2 (Graviton4)"
    assert {"sve2", "bf16", "i8mm"} <= set(info.flags)


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    info = read_cpu(root=tmp_path, platform="linux")
    assert info == CpuInfo(None, None, None, None, None, None, (), (), None, None)
    assert "names no CPU" in str(detect_local(cpu=info, accelerators=[])[0].missing)
    assert read_cpu(runner=tools({}), platform="darwin").name is None
    assert read_cpu(platform="win32").memory_total_bytes is None


# --- This machine


def test_this_machine() -> None:
    detected = detect_local()
    cpu = detected[-1]
    assert cpu.kind == "cpu"
    assert cpu.cpu is not None
    if sys.platform.startswith("linux"):
        assert cpu.cpu.usable_threads
        assert cpu.cpu.usable_memory_bytes
        assert cpu.cpu.usable_cores
        assert cpu.cpu.usable_cores <= cpu.cpu.usable_threads
    for item in detected:
        assert (item.catalogue is None) == (item.missing is not None)
        json.dumps(item.to_dict(), allow_nan=False)


def test_a_saved_probe_answers_for_local() -> None:
    probe = device_by_hand(peak_flops_per_s=1e12, bandwidth_bytes_per_s=5e10)
    assert local_device(probe) is probe
    with pytest.raises(NotFoundError):
        local_device(found=[])


def test_commands_that_are_missing_fail_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run(["no-such-command-here"]).installed
    assert run([sys.executable, "-c", "print(7)"]).text.strip() == "7"
    failed = run([sys.executable, "-c", "print('out of order'); raise SystemExit(3)"])
    assert (failed.ok, "out of order" in failed.why) == (False, True)
    monkeypatch.setattr("rooflens.hardware.shell.TIMEOUT_S", 0.05)
    assert "did not answer" in run([sys.executable, "-c", "import time; time.sleep(5)"]).why

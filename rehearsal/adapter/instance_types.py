"""EC2's description of an instance type, under the names of the provider's look-up `aws:ec2/getInstanceType`."""

import gzip
import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

# Key of the look-up -> where DescribeInstanceTypes has it. Source: the provider's data source `aws_ec2_instance_type`.
_PLACES = {
    "id": "InstanceType",
    "instanceType": "InstanceType",
    "autoRecoverySupported": "AutoRecoverySupported",
    "bareMetal": "BareMetal",
    "bootModes": "SupportedBootModes",
    "burstablePerformanceSupported": "BurstablePerformanceSupported",
    "currentGeneration": "CurrentGeneration",
    "dedicatedHostsSupported": "DedicatedHostsSupported",
    "defaultCores": "VCpuInfo.DefaultCores",
    "defaultNetworkCardIndex": "NetworkInfo.DefaultNetworkCardIndex",
    "defaultThreadsPerCore": "VCpuInfo.DefaultThreadsPerCore",
    "defaultVcpus": "VCpuInfo.DefaultVCpus",
    "ebsEncryptionSupport": "EbsInfo.EncryptionSupport",
    "ebsNvmeSupport": "EbsInfo.NvmeSupport",
    "ebsOptimizedSupport": "EbsInfo.EbsOptimizedSupport",
    "ebsPerformanceBaselineBandwidth": "EbsInfo.EbsOptimizedInfo.BaselineBandwidthInMbps",
    "ebsPerformanceBaselineIops": "EbsInfo.EbsOptimizedInfo.BaselineIops",
    "ebsPerformanceBaselineThroughput": "EbsInfo.EbsOptimizedInfo.BaselineThroughputInMBps",
    "ebsPerformanceMaximumBandwidth": "EbsInfo.EbsOptimizedInfo.MaximumBandwidthInMbps",
    "ebsPerformanceMaximumIops": "EbsInfo.EbsOptimizedInfo.MaximumIops",
    "ebsPerformanceMaximumThroughput": "EbsInfo.EbsOptimizedInfo.MaximumThroughputInMBps",
    "efaMaximumInterfaces": "NetworkInfo.EfaInfo.MaximumEfaInterfaces",
    "efaSupported": "NetworkInfo.EfaSupported",
    "enaSrdSupported": "NetworkInfo.EnaSrdSupported",
    "enaSupport": "NetworkInfo.EnaSupport",
    "encryptionInTransitSupported": "NetworkInfo.EncryptionInTransitSupported",
    "freeTierEligible": "FreeTierEligible",
    "hibernationSupported": "HibernationSupported",
    "hypervisor": "Hypervisor",
    "instanceStorageSupported": "InstanceStorageSupported",
    "ipv6Supported": "NetworkInfo.Ipv6Supported",
    "maximumIpv4AddressesPerInterface": "NetworkInfo.Ipv4AddressesPerInterface",
    "maximumIpv6AddressesPerInterface": "NetworkInfo.Ipv6AddressesPerInterface",
    "maximumNetworkCards": "NetworkInfo.MaximumNetworkCards",
    "maximumNetworkInterfaces": "NetworkInfo.MaximumNetworkInterfaces",
    "memorySize": "MemoryInfo.SizeInMiB",
    "networkPerformance": "NetworkInfo.NetworkPerformance",
    "nitroEnclavesSupport": "NitroEnclavesSupport",
    "nitroTpmSupport": "NitroTpmSupport",
    "nitroTpmSupportedVersions": "NitroTpmInfo.SupportedVersions",
    "phcSupport": "PhcSupport",
    "supportedArchitectures": "ProcessorInfo.SupportedArchitectures",
    "supportedCpuFeatures": "ProcessorInfo.SupportedFeatures",
    "supportedPlacementStrategies": "PlacementGroupInfo.SupportedStrategies",
    "supportedRootDeviceTypes": "SupportedRootDeviceTypes",
    "supportedUsagesClasses": "SupportedUsageClasses",
    "supportedVirtualizationTypes": "SupportedVirtualizationTypes",
    "sustainedClockSpeed": "ProcessorInfo.SustainedClockSpeedInGhz",
    "totalGpuMemory": "GpuInfo.TotalGpuMemoryInMiB",
    "totalInstanceStorage": "InstanceStorageInfo.TotalSizeInGB",
    "validCores": "VCpuInfo.ValidCores",
    "validThreadsPerCores": "VCpuInfo.ValidThreadsPerCore",
}
_LISTS = {
    "gpuses": (
        "GpuInfo.Gpus",
        {"count": "Count", "manufacturer": "Manufacturer", "memorySize": "MemoryInfo.SizeInMiB", "name": "Name"},
    ),
    "instanceDisks": ("InstanceStorageInfo.Disks", {"count": "Count", "size": "SizeInGB", "type": "Type"}),
    "networkCards": (
        "NetworkInfo.NetworkCards",
        {
            "baselineBandwidth": "BaselineBandwidthInGbps",
            "index": "NetworkCardIndex",
            "maximumInterfaces": "MaximumNetworkInterfaces",
            "peakBandwidth": "PeakBandwidthInGbps",
            "performance": "NetworkPerformance",
        },
    ),
}
_OTHER_ACCELERATORS = ("FpgaInfo", "InferenceAcceleratorInfo", "MediaAcceleratorInfo", "NeuronInfo")


def as_look_up(described: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of DescribeInstanceTypes as the look-up answers it. What EC2 leaves out stays out."""
    for section in _OTHER_ACCELERATORS:
        if section in described:
            raise NotImplementedError(f"{described['InstanceType']}: the look-up does not answer {section}")
    answer = _taken(described, _PLACES)
    for key, (place, keys) in _LISTS.items():
        answer[key] = [_taken(item, keys) for item in _at(described, place) or []]
    return answer


@cache
def shipped() -> dict[str, Any]:
    """DescribeInstanceTypes of the real AWS as moto ships it, by name. Read without moto, whose import is slow."""
    spec = importlib.util.find_spec("moto")
    assert spec is not None, "moto is not installed"
    (folder,) = spec.submodule_search_locations or []
    file = Path(folder) / "ec2/resources/instance_types.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return found


def _taken(item: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    found = {key: _at(item, place) for key, place in places.items()}
    return {key: value for key, value in found.items() if value is not None}


def _at(item: Any, place: str) -> Any:
    for part in place.split("."):
        item = item.get(part) if item is not None else None
    return item

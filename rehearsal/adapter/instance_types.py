"""Converts EC2's description of an instance type to the result of the provider function aws:ec2/getInstanceType."""

import gzip
import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

# Key of the result -> path in DescribeInstanceTypes. Source: the provider's data source `aws_ec2_instance_type`.
_PATHS = {
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


def to_lookup_result(described: Mapping[str, Any]) -> dict[str, Any]:
    """Convert one entry of DescribeInstanceTypes. Fields that EC2 omits are omitted.

    Raises NotImplementedError for a type with accelerators other than GPUs.
    """
    for section in _OTHER_ACCELERATORS:
        if section in described:
            raise NotImplementedError(f"{described['InstanceType']}: the result does not include {section}")
    result = _select(described, _PATHS)
    for key, (path, paths) in _LISTS.items():
        result[key] = [_select(item, paths) for item in _at(described, path) or []]
    return result


@cache
def read_instance_types() -> dict[str, Any]:
    """Return AWS's DescribeInstanceTypes by type name, from moto's data file. Importing moto itself would be slow."""
    spec = importlib.util.find_spec("moto")
    assert spec is not None, "moto is not installed"
    (folder,) = spec.submodule_search_locations or []
    file = Path(folder) / "ec2/resources/instance_types.json.gz"
    types: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return types


def _select(item: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    values = {key: _at(item, path) for key, path in paths.items()}
    return {key: value for key, value in values.items() if value is not None}


def _at(item: Any, path: str) -> Any:
    for part in path.split("."):
        item = item.get(part) if item is not None else None
    return item

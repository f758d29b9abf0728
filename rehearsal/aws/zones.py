"""Availability Zones of the emulated account."""


def region_zones(region: str) -> list[str]:
    """Return the names of a region's Availability Zones; empty for a region of which moto has no zones."""
    # Imported here, because it takes a second.
    from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

    return sorted(zone.name for zone in RegionsAndZonesBackend.zones.get(region, []))

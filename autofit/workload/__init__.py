"""The user's model and data: references to them, their transfer to trial processes, and their
fingerprint.
"""

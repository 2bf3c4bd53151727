"""TODO sampling"""

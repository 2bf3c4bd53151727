"""TODO attention"""
